"""Builds the wheel: first the guest, the static programs that go into sandboxes, then the rest with maturin.

The default is quick to build. `pip wheel --config-settings=profile=release` builds the wheel of a release.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import maturin
from maturin import (
    get_requires_for_build_editable,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

PACKAGE = Path(__file__).resolve().parent.parent
WORKSPACE = PACKAGE.parent.parent
PROGRAMS = ("sandpod-boot", "sandpod-guest")
ARCHITECTURES = {
    "x86_64": ("amd64", "x86_64-unknown-linux-musl"),
    "aarch64": ("arm64", "aarch64-unknown-linux-musl"),
}
"""For each machine type of Python: the architecture of Kubernetes, and the target of Rust."""
PROFILES = {"quick": "quick", "release": "dist"}
"""For each Cargo profile of the library, that of the guest."""


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build the guest, then the wheel."""
    return maturin.build_wheel(wheel_directory, build_guest(config_settings), metadata_directory)


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build the guest, then an editable wheel."""
    return maturin.build_editable(wheel_directory, build_guest(config_settings), metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """Refuse: the sources of one directory cannot build the guest."""
    del sdist_directory, config_settings
    msg = "sandpod is built from its whole repository. Build a wheel instead: pip wheel ./bindings/python"
    raise RuntimeError(msg)


def build_guest(config_settings: dict[str, Any] | None) -> dict[str, Any]:
    """Put the guest for this machine's architecture where the package looks for it; return the settings for maturin."""
    settings = dict(config_settings or {})
    profile = settings.pop("profile", "quick")
    if profile not in PROFILES:
        msg = f"There is no profile {profile!r}: choose one of {', '.join(PROFILES)}."
        raise RuntimeError(msg)
    if platform.machine() not in ARCHITECTURES:
        msg = f"There is no guest for {platform.machine()}: sandboxes run on {' and '.join(ARCHITECTURES)}."
        raise RuntimeError(msg)
    kubernetes, target = ARCHITECTURES[platform.machine()]
    kept = PACKAGE / "python" / "sandpod" / "guest" / kubernetes
    kept.mkdir(parents=True, exist_ok=True)
    built = os.environ.get("SANDPOD_GUEST_DIR") or compile_guest(target, PROFILES[profile])
    for program in PROGRAMS:
        shutil.copy2(Path(built) / program, kept / program)
    return {"build-args": f"--profile {profile}", **settings}


def compile_guest(target: str, profile: str) -> Path:
    """Compile the guest; return the directory that holds its programs."""
    if not shutil.which("cargo"):
        msg = "Building sandpod requires Rust, but cargo is not on PATH. Install Rust from https://rustup.rs."
        raise RuntimeError(msg)
    if shutil.which("rustup"):
        subprocess.run(["rustup", "target", "add", target], check=True, cwd=WORKSPACE)
    build = ["cargo", "build", "--locked", "--package=sandpod-guest", "--bins"]
    build += [f"--profile={profile}", f"--target={target}"]
    # ring's C code needs no library, so this machine's compiler can build it for musl.
    compiler = {f"CC_{target.replace('-', '_')}": "cc"}
    subprocess.run(build, check=True, cwd=WORKSPACE, env={**os.environ, **compiler})
    return WORKSPACE / os.environ.get("CARGO_TARGET_DIR", "target") / target / profile
