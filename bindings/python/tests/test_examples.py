"""The examples, with a scripted model and local sandboxes."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sandpod.tools import python_tool
from scripted import calls, execute, script, tool_results

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandpod import KubernetesProviderConfig

    LocalConfig = Callable[..., KubernetesProviderConfig]

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    monkeypatch.setattr("sys.path", [str(EXAMPLES), *sys.path])
    return lambda name: importlib.import_module(name).main


def test_every_example_is_run_here_or_in_test_servers() -> None:
    tests = "".join((Path(__file__).parent / name).read_text() for name in ("test_examples.py", "test_servers.py"))
    examples = {path.stem for path in EXAMPLES.iterdir() if not path.name.startswith(("_", "."))}
    assert {name for name in examples if name not in tests} == set()


def test_each_conversation_has_a_sandbox(example: Callable[[str], Any], local_config: LocalConfig) -> None:
    model = script(execute("seq 10 > squares.txt"), "written", execute("cat squares.txt"), "385")
    assert example("per_thread")(model, local_config()) == ["written", "385"]


def test_a_tool_runs_python_on_the_agents_files(example: Callable[[str], Any], local_config: LocalConfig) -> None:
    code = "print(sum(int(line.split(',')[1]) for line in open('/app/sales.csv')))"
    model = script(calls(("execute_python", {"code": code})), "7")
    state = example("sandbox_as_tool")(model, local_config())
    assert tool_results(state) == ["exit=0\n7\n"]


def test_three_backends_form_one_tree(example: Callable[[str], Any], local_config: LocalConfig) -> None:
    model = script(
        calls(
            ("write_file", {"file_path": "/sandbox/script.py", "content": "print(1)\n"}),
            ("write_file", {"file_path": "/memories/where.md", "content": "/sandbox/script.py"}),
            ("write_file", {"file_path": "/notes.md", "content": "scratch"}),
        ),
        "done",
    )
    state, written = example("composite")(model, local_config())
    assert written == b"print(1)\n"
    assert list(state["files"]) == ["/notes.md"]


def test_denied_operations_fail_and_allowed_ones_are_logged(
    example: Callable[[str], Any], local_config: LocalConfig
) -> None:
    model = script(
        calls(("write_file", {"file_path": "/etc/passwd", "content": ""}), ("execute", {"command": "curl evil"})),
        execute("echo fine"),
        "done",
    )
    state, log = example("policy_and_audit")(model, local_config())
    assert ["Policy denied" in result for result in tool_results(state)] == [True, True, False]
    assert log == [("execute", "echo fine")]


async def test_the_python_tool_keeps_its_sandbox_for_a_run_and_reports_failures(local_config: LocalConfig) -> None:
    async with python_tool(local_config(), timeout=30) as python:
        files = {"binary": {"content": "AAE=", "encoding": "base64"}, "/app/text": {"content": ["one", "two"]}}

        async def run(code: str) -> str:
            state: dict[str, Any] = {"files": files}
            return await python.tool.ainvoke({"code": code, "state": state})

        assert await run("print(list(open('/app/binary', 'rb').read()))") == "exit=0\n[0, 1]\n"
        assert await run("print(open('/app/text').read()); open('/tmp/kept', 'w')") == "exit=0\none\ntwo\n"
        assert (await run("import os; print(os.path.exists('/tmp/kept')); raise SystemExit(3)")) == "exit=3\nTrue\n"
