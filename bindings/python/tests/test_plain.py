"""`sandpod.Sandbox`, without LangChain."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sandpod
from pythons import supported_pythons
from sandpod import KubernetesProvider, Sandbox, SandboxError, SandboxNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sandpod import KubernetesProviderConfig

WITHOUT_LANGCHAIN = """
import asyncio, importlib.util
assert not importlib.util.find_spec("deepagents") and not importlib.util.find_spec("langchain_core")
from sandpod import KubernetesProvider, KubernetesProviderConfig, Sandbox

config = KubernetesProviderConfig(mode="local")

async def use() -> None:
    async with await Sandbox.acreate(config) as sandbox:
        assert [info.id for info in KubernetesProvider(config).list().sandboxes] == [sandbox.id]
        await sandbox.awrite("/workspace/note", "hello")
        print((await sandbox.aexecute("cat note")).output)

asyncio.run(use())
import sandpod
for name in ("KubernetesSandbox", "KubernetesSandboxManager", "SandboxPolicyWrapper"):
    try:
        getattr(sandpod, name)
    except ImportError as error:
        print(error)
"""


@pytest.fixture(scope="module")
def sandbox(local_config: Callable[..., KubernetesProviderConfig]) -> Iterator[Sandbox]:
    with Sandbox.create(local_config()) as sandbox:
        yield sandbox


@pytest.mark.parametrize(
    "python", supported_pythons(), ids=lambda python: "own" if python == sys.executable else Path(python).name
)
def test_it_works_without_langchain_on_every_installed_python(python: str, tmp_path: Path) -> None:
    (tmp_path / "sandpod").symlink_to(Path(sandpod.__file__).parent)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    # -S: without the installed packages of this Python.
    done = subprocess.run(
        [python, "-S", "-c", WITHOUT_LANGCHAIN], check=False, capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    said, *refusals = done.stdout.splitlines()
    assert said == "hello"
    assert len(refusals) == 3
    assert all(refusal.endswith("Install with: pip install sandpod[deepagents]") for refusal in refusals)


def test_importing_takes_less_than_50_ms() -> None:
    # CPU time, because the machine may be busy.
    script = "import time; begun = time.process_time(); import sandpod; print(time.process_time() - begun)"
    runs = [subprocess.run([sys.executable, "-c", script], check=True, capture_output=True) for _ in range(5)]
    best = min(float(run.stdout) for run in runs)
    print(f"import sandpod: {best * 1000:.1f} ms")  # noqa: T201 - the figure
    assert best < 0.05


def test_files_are_written_read_edited_found_and_deleted(sandbox: Sandbox) -> None:
    sandbox.write("/workspace/files/a.txt", "one\ntwo\ntwo\n")
    sandbox.write("/workspace/files/b.bin", b"\0\1")
    assert sandbox.read("/workspace/files/b.bin") == b"\0\1"
    assert sandbox.edit("/workspace/files/a.txt", "two", "three", replace_all=True) == 2
    assert sandbox.read_text("/workspace/files/a.txt") == "one\nthree\nthree\n"
    assert sorted((entry.path, entry.is_dir, entry.size) for entry in sandbox.ls("/workspace/files")) == [
        ("/workspace/files/a.txt", False, 16),
        ("/workspace/files/b.bin", False, 2),
    ]
    found = sandbox.glob("*.txt", "/workspace/files")
    assert ([entry.path for entry in found.files], found.incomplete) == (["/workspace/files/a.txt"], None)
    lines = sandbox.grep("three", "/workspace/files", max_count=1)
    assert ([(match.line, match.text) for match in lines.matches], lines.truncated) == ([(2, "three")], True)
    sandbox.delete("/workspace/files")
    with pytest.raises(SandboxError, match="files") as raised:
        sandbox.ls("/workspace/files")
    assert raised.value.code == "not_found"


async def test_async_methods_write_read_edit_find_and_delete_files(sandbox: Sandbox) -> None:
    await sandbox.awrite("/workspace/async/a.txt", "one\n")
    assert await sandbox.aedit("/workspace/async/a.txt", "one", "two") == 1
    assert await sandbox.aread_text("/workspace/async/a.txt") == "two\n"
    assert [entry.path for entry in await sandbox.als("/workspace/async")] == ["/workspace/async/a.txt"]
    assert len((await sandbox.aglob("*.txt", "/workspace/async")).files) == 1
    assert len((await sandbox.agrep("two", "/workspace/async", glob="*.txt")).matches) == 1
    await sandbox.adelete("/workspace/async")
    with pytest.raises(SandboxError):
        await sandbox.aread("/workspace/async/a.txt")


def test_a_command_has_an_exit_code_and_a_failed_write_raises(sandbox: Sandbox) -> None:
    executed = sandbox.execute("echo one; echo two >&2; exit 3")
    assert (executed.output, executed.exit_code, executed.truncated) == ("one\ntwo\n", 3, False)
    assert sandbox.execute("sleep 60", timeout=1).exit_code == 124
    with pytest.raises(SandboxError, match="relative"):
        sandbox.write("relative", "")
    assert "".join(chunk.text for chunk in sandbox.stream("echo streamed")) == "streamed\n"


def test_a_shell_session_keeps_its_directory_and_variables(
    local_config: Callable[..., KubernetesProviderConfig],
) -> None:
    with Sandbox.create(local_config(), shell_session="mine") as sandbox:
        sandbox.execute("cd /tmp && export COLOUR=blue")
        assert sandbox.execute("echo $COLOUR in $PWD").output == "blue in /tmp\n"


def test_a_plain_sandbox_is_found_by_its_id_and_deleted(
    local_config: Callable[..., KubernetesProviderConfig],
) -> None:
    with Sandbox.create(local_config(), labels={"team": "plain"}, policy={"root_dir": "/workspace"}) as made:
        (info,) = KubernetesProvider(local_config()).list(labels={"team": "plain"}).sandboxes
        assert info.id == made.id
        made.write("/note", "kept")
        assert Sandbox.connect(local_config(), made.id).read_text("/workspace/note") == "kept"
    with pytest.raises(SandboxNotFoundError):
        Sandbox.connect(local_config(), made.id)
