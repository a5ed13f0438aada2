"""`dcode --sandbox kubernetes`: the real package finds our provider by its entry point, and uses it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sandpod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sandpod import KubernetesProviderConfig

DCODE = "deepagents-code==0.1.88"
PROJECT = Path(__file__).parents[1] / "pyproject.toml"
SESSION = """
from deepagents_code.integrations.sandbox_factory import create_sandbox
from deepagents_code.integrations import sandbox_registry
from sandpod.dcode import DcodeProvider

metadata = DcodeProvider().metadata
assert (metadata.name, metadata.working_dir) == ("kubernetes", "/workspace"), metadata
with create_sandbox("kubernetes") as backend:
    made = backend.id
    print(backend.execute("echo hello from $PWD", timeout=30).output, end="")
    with create_sandbox("kubernetes", sandbox_id=made) as found:
        assert found.id == made
    assert backend.execute("true").exit_code == 0, "who only found it doesn't delete it"
try:
    DcodeProvider().get_or_create(sandbox_id=made, mode="local")
except Exception as error:
    print(type(error).__module__, type(error).__name__)
"""


def _newer_pythons() -> Iterator[str]:
    """Pythons from 3.12 on: those in PATH, and those that pyenv has beside the chosen one."""
    for minor in (12, 13, 14):
        found = shutil.which(f"python3.{minor}")
        if found:
            yield found
        pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
        yield from map(str, sorted(pyenv.glob(f"versions/3.{minor}.*/bin/python3.{minor}")))


def _runs(program: str) -> bool:
    return subprocess.run([program, "-c", ""], check=False, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with dcode; it needs 3.12."""
    ready = os.environ.get("SANDPOD_TEST_DCODE_PYTHON")
    if ready:
        return ready
    newer = next(filter(_runs, _newer_pythons()), None)
    environment = tmp_path_factory.mktemp("dcode")
    program = str(environment / "bin" / "python")
    steps = [[newer or "", "-m", "venv", str(environment)], [program, "-m", "pip", "install", "--quiet", DCODE]]
    for step in steps:
        done = subprocess.run(step, check=False, capture_output=True) if newer else None
        if done is None or done.returncode != 0:
            why = f"dcode needs a Python 3.12 and PyPI: {done.stderr.decode()[-300:] if done else 'no such Python'}"
            pytest.fail(why) if os.environ.get("CI") else pytest.skip(why)
    return program


@pytest.mark.timeout(600)
def test_a_session_makes_uses_finds_and_deletes_a_sandbox(
    python: str, tmp_path: Path, local_config: Callable[..., KubernetesProviderConfig]
) -> None:
    assert local_config().mode == "local"
    (tmp_path / "sandpod").symlink_to(Path(sandpod.__file__).parent)
    installed = tmp_path / "sandpod-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: sandpod\nVersion: 0.1.0\n")
    (group, entries), *_ = tomllib.loads(PROJECT.read_text())["project"]["entry-points"].items()
    (installed / "entry_points.txt").write_text(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items()))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "SANDPOD_MODE": "local"}
    done = subprocess.run([python, "-c", SESSION], check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "hello from /workspace\n" in done.stdout
    assert done.stdout.endswith("deepagents_code.integrations.sandbox_provider SandboxNotFoundError\n")
