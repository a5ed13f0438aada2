"""The released wheel, as a user installs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pythons import supported_pythons

ROOT = Path(__file__).resolve().parents[3]


def example() -> str:
    """Return the README's example, which needs neither a cluster nor LangChain."""
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return block


@pytest.fixture
def wheel() -> Path:
    """Return the wheel for this machine."""
    (wheel,) = Path(os.environ.get("SANDPOD_TEST_DIST", ROOT / "dist")).glob("sandpod-*.whl")
    return wheel


@pytest.mark.parametrize("python", supported_pythons(), ids=lambda python: Path(python).name)
def test_the_wheel_runs_the_readmes_example_in_an_empty_environment(python: str, wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([python, "-m", "venv", "--without-pip", environment], check=True)
    install = [sys.executable, "-m", "pip", "--python", environment, "install", "--quiet", "--no-index", wheel]
    subprocess.run(install, check=True)
    (tmp_path / "example.py").write_text(example())
    # Without this checkout's guest and packages.
    variables = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    ran = subprocess.run(
        [environment / "bin" / "python", "example.py"],
        cwd=tmp_path,
        env=variables,
        check=False,
        capture_output=True,
        text=True,
    )
    assert (ran.stdout.strip(), ran.stderr) == ("42", "")
