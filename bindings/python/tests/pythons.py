"""The Python interpreters of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

SUPPORTED = (11, 12, 13, 14)
"""The supported minor versions of Python 3."""


def supported_pythons() -> list[str]:
    """Return one installed interpreter of each supported version."""
    found = {minor: next(_working(minor), None) for minor in SUPPORTED}
    found[sys.version_info.minor] = sys.executable
    return [python for python in found.values() if python]


def programs_of(environment: str) -> Path:
    """Return the programs of an environment created by `cargo xtask test`."""
    environments = os.environ.get("SANDPOD_TEST_ENVIRONMENTS")
    if not environments:
        pytest.skip("SANDPOD_TEST_ENVIRONMENTS names no directory of environments: cargo xtask test makes it")
    return Path(environments) / environment / "bin"


def _working(minor: int) -> Iterator[str]:
    """Return the interpreters in PATH and those of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    known = [shutil.which(f"python3.{minor}"), *sorted(pyenv.glob(f"versions/3.{minor}.*/bin/python3.{minor}"))]
    for python in filter(None, known):
        if subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode == 0:
            yield str(python)
