"""`dcode --sandbox kubernetes`: the real package loads our provider by its entry point."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sandpod
from sandpod import KubernetesProvider

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sandpod import KubernetesProviderConfig

DCODES = {"0.1.57": (11,), "0.1.88": (12, 13, 14)}
"""Versions of deepagents-code with their Python versions; the last for 3.11 requires deepagents 0.7.6."""
PROJECT = Path(__file__).parents[1] / "pyproject.toml"
SESSION = """
from deepagents_code.integrations.sandbox_factory import create_sandbox
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


KILLED = """
import time
from deepagents_code.integrations.sandbox_factory import create_sandbox

with create_sandbox("kubernetes") as backend:
    print(backend.id, flush=True)
    time.sleep(1000)
"""
TIMES = """
from sandpod import dcode

for options in ({"mode": "local"}, {"mode": "agent-sandbox"}, {"mode": "local", "ttl_seconds": 60}):
    print(dcode._end(dcode._config(options)))
"""


def _pythons(minors: tuple[int, ...]) -> Iterator[str]:
    """Return interpreters of these versions, in PATH or of pyenv."""
    for minor in minors:
        found = shutil.which(f"python3.{minor}")
        if found:
            yield found
        pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
        yield from map(str, sorted(pyenv.glob(f"versions/3.{minor}.*/bin/python3.{minor}")))


def _runs(program: str) -> bool:
    return subprocess.run([program, "-c", ""], check=False, capture_output=True).returncode == 0


@pytest.fixture(scope="module", params=DCODES)
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with one version of dcode, from the directory of such environments if there is one."""
    fitting = next(filter(_runs, _pythons(DCODES[request.param])), None)
    kept = os.environ.get("SANDPOD_TEST_ENVIRONMENTS")
    environments = Path(kept) if kept else tmp_path_factory.mktemp("dcode")
    environment = environments / f"deepagents-code-{request.param}"
    complete = environment / "complete"
    program = str(environment / "bin" / "python")
    if complete.exists():
        return program
    dcode = f"deepagents-code=={request.param}"
    venv = [fitting or "", "-m", "venv", "--clear", str(environment)]
    steps = [venv, [program, "-m", "pip", "install", "--quiet", dcode]]
    for step in steps:
        done = subprocess.run(step, check=False, capture_output=True) if fitting else None
        if done is None or done.returncode != 0:
            why = f"{dcode} needs a Python of its own and PyPI: {done.stderr.decode()[-300:] if done else 'no Python'}"
            pytest.fail(why) if os.environ.get("CI") else pytest.skip(why)
    complete.touch()
    return program


@pytest.fixture
def variables(tmp_path: Path, local_config: Callable[..., KubernetesProviderConfig]) -> dict[str, str]:
    """Return the variables of a process with this package and local sandboxes."""
    assert local_config().mode == "local"
    (tmp_path / "sandpod").symlink_to(Path(sandpod.__file__).parent)
    installed = tmp_path / "sandpod-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: sandpod\nVersion: 0.1.0\n")
    (group, entries), *_ = tomllib.loads(PROJECT.read_text())["project"]["entry-points"].items()
    (installed / "entry_points.txt").write_text(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items()))
    return {**os.environ, "PYTHONPATH": str(tmp_path), "SANDPOD_MODE": "local"}


@pytest.mark.timeout(600)
def test_a_session_creates_uses_finds_and_deletes_a_sandbox(python: str, variables: dict[str, str]) -> None:
    done = subprocess.run([python, "-c", SESSION], check=False, capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    assert "hello from /workspace\n" in done.stdout
    assert done.stdout.endswith("deepagents_code.integrations.sandbox_provider SandboxNotFoundError\n")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_session_that_is_killed_leaves_no_sandbox(
    python: str, variables: dict[str, str], local_config: Callable[..., KubernetesProviderConfig], how: signal.Signals
) -> None:
    session = subprocess.Popen(
        [python, "-c", KILLED], stdout=subprocess.PIPE, text=True, env=variables, start_new_session=True
    )
    assert session.stdout
    made = next(line for line in map(str.strip, session.stdout) if line.startswith("sp-"))
    provider = KubernetesProvider(local_config())
    assert [info.id for info in provider.list().sandboxes] == [made]
    os.killpg(session.pid, how)  # as dcode ends its server
    assert session.wait() == -how
    session.stdout.close()
    while provider.list().sandboxes:
        time.sleep(0.05)


@pytest.mark.timeout(600)
def test_a_sandbox_of_a_session_has_a_ttl(python: str, variables: dict[str, str]) -> None:
    done = subprocess.run([python, "-c", TIMES], check=True, capture_output=True, text=True, env=variables)
    day, idle = "'ttl_seconds': 86400", "'ttl_idle_seconds': 28800"
    assert done.stdout.splitlines() == [f"{{{idle}}}", f"{{{idle}, {day}}}", "{}"]
