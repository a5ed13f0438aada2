"""Builds the wheel: first the guest, the static programs that go into sandboxes, then all else with maturin."""

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
"""The names that Kubernetes and Rust have for what Python calls so."""


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build the guest, then the wheel."""
    build_guest()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build the guest, then a wheel that points here."""
    build_guest()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """Refuse: the sources of one directory can't make the guest."""
    del sdist_directory, config_settings
    msg = "sandpod is built from its whole repository. Build a wheel instead: pip wheel ./bindings/python"
    raise RuntimeError(msg)


def build_guest() -> None:
    """Put the guest for this machine's architecture where the package looks for it."""
    if not shutil.which("cargo"):
        msg = "Building sandpod needs Rust, and there is no cargo on PATH. Install it from https://rustup.rs."
        raise RuntimeError(msg)
    if platform.machine() not in ARCHITECTURES:
        msg = f"There is no guest for {platform.machine()}: sandboxes run on {' and '.join(ARCHITECTURES)}."
        raise RuntimeError(msg)
    kubernetes, target = ARCHITECTURES[platform.machine()]
    if shutil.which("rustup"):
        subprocess.run(["rustup", "target", "add", target], check=True, cwd=WORKSPACE)
    build = ["cargo", "build", "--release", "--locked", "--package=sandpod-guest", "--bins", f"--target={target}"]
    subprocess.run(build, check=True, cwd=WORKSPACE)

    built = WORKSPACE / os.environ.get("CARGO_TARGET_DIR", "target") / target / "release"
    kept = PACKAGE / "python" / "sandpod" / "guest" / kubernetes
    kept.mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS:
        shutil.copy2(built / program, kept / program)
