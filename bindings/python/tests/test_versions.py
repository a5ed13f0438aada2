"""The supported versions of Deep Agents. `cargo xtask test` creates an environment for each."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sandpod
from pythons import programs_of

if TYPE_CHECKING:
    from collections.abc import Callable

TESTS = Path(__file__).parent

FILES_AND_COMMANDS = """
import asyncio, warnings
import sandpod.compat.langchain_agent_sandbox, sandpod.compat.langchain_k8s
import sandpod.compat.langchain_kubernetes_agent_sandbox
from sandpod import KubernetesProviderConfig, KubernetesSandbox
from sandpod.compat import langchain_kubernetes

def use(sandbox):
    assert sandbox.execute("echo hello; exit 3").exit_code == 3
    assert sandbox.write("/workspace/a.txt", "one\\ntwo\\n").error is None
    assert sandbox.edit("/workspace/a.txt", "two", "three").occurrences == 1
    assert sandbox.edit("/workspace/a.txt", "", "three").error.startswith("Error: old_string cannot be empty")
    assert sandbox.read("/workspace/a.txt", -1, 1).file_data["content"] == "one"
    assert [found["path"] for found in sandbox.glob("*.txt", "/workspace").matches] == ["/workspace/a.txt"]
    assert [found["text"] for found in sandbox.grep("three", "/workspace").matches] == ["three"]
    assert [found["path"] for found in sandbox.ls("/workspace").entries] == ["/workspace/a.txt"]
    assert sandbox.upload_files([("/workspace/b", b"\\0")])[0].error is None
    assert sandbox.download_files(["/workspace/b"])[0].content == b"\\0"
    assert sandbox.delete("/workspace/b").error is None

def use_older_names(sandbox):
    assert [found["path"] for found in sandbox.ls_info("/workspace")] == ["/workspace/a.txt"]
    assert [found["path"] for found in sandbox.glob_info("*.txt", "/workspace")] == ["/workspace/a.txt"]
    assert [found["text"] for found in sandbox.grep_raw("three", "/workspace")] == ["three"]
    assert [found["text"] for found in asyncio.run(sandbox.agrep_raw("three", "/workspace"))] == ["three"]
    assert (asyncio.run(sandbox.aread("/workspace/a.txt"))).file_data["content"] == "one\\nthree"

provider = langchain_kubernetes.KubernetesProvider(KubernetesProviderConfig(mode="local"))
sandbox = provider.get_or_create()
try:
    assert isinstance(sandbox, KubernetesSandbox)
    use(sandbox)
    use_older_names(sandbox)
finally:
    provider.delete(sandbox_id=sandbox.id)
"""


@pytest.fixture
def run_with(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a Python with one version of Deep Agents and this package."""
    (tmp_path / "sandpod").symlink_to(Path(sandpod.__file__).parent)
    variables = {**os.environ, "PYTHONPATH": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}

    def run(version: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        python = str(programs_of(f"deepagents-{version}") / "python")
        return subprocess.run([python, *arguments], check=False, capture_output=True, text=True, env=variables)

    return run


@pytest.mark.timeout(300)
def test_an_agent_works_with_0_7_6(run_with: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    tests = [str(TESTS / name) for name in ("test_deep_agent.py", "test_operations.py", "test_policy.py")]
    project = ["-c", str(TESTS.parent / "pyproject.toml"), "-p", "no:cacheprovider"]
    done = run_with("0.7.6", "-m", "pytest", "--quiet", "-m", "not cluster", *project, *tests)
    assert done.returncode == 0, done.stdout


def test_files_commands_and_their_older_names_work_with_0_6_1(
    run_with: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_with("0.6.1", "-W", "ignore", "-c", FILES_AND_COMMANDS)
    assert done.returncode == 0, done.stderr


def test_an_older_version_is_rejected_with_a_message(run_with: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run_with("0.5.9", "-c", "import sandpod; sandpod.Sandbox; sandpod.KubernetesSandbox")
    assert done.returncode == 1
    assert "deepagents 0.5.9 is installed, and sandpod works with 0.6.1 or newer." in done.stderr.splitlines()[-1]
