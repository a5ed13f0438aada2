"""A deep agent with a scripted model on every backend: its tools and its middleware."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType]
from langchain_core.tools import tool  # pyright: ignore[reportUnknownVariableType]

from sandpod import KubernetesProvider
from scripted import calls, execute, script, tool_results

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandpod import KubernetesSandbox
    from scripted import ScriptedModel

SKILL = """---
name: counting
description: How to count what is in a file.
---
Use wc.
"""
COUNT = "i=0; while [ $i -lt 20000 ]; do echo line-$i; i=$((i+1)); done"


@pytest.fixture(
    scope="module",
    params=[
        "local",
        pytest.param("raw", marks=pytest.mark.cluster),
        pytest.param("agent_sandbox", marks=pytest.mark.cluster),
    ],
)
def sandbox(request: pytest.FixtureRequest) -> Iterator[KubernetesSandbox]:
    """A sandbox of each kind."""
    config = request.getfixturevalue(f"{request.param}_config")
    provider = KubernetesProvider(config(image="sandpod.test/busybox:1") if request.param == "raw" else config())
    sandbox = provider.get_or_create()
    yield sandbox
    provider.delete(sandbox_id=sandbox.id)


def run(sandbox: KubernetesSandbox, model: ScriptedModel, **options: Any) -> Any:
    """Run one turn of an agent whose backend is the sandbox."""
    agent: Any = create_deep_agent(model, backend=sandbox, **options)  # pyright: ignore[reportUnknownVariableType]
    return agent.invoke({"messages": [("user", "go")]})


def test_files_are_written_edited_searched_and_run(sandbox: KubernetesSandbox) -> None:
    path = "/workspace/tools/count.sh"
    model = script(
        calls(("write_file", {"file_path": path, "content": "echo one\necho two\n"})),
        calls(("edit_file", {"file_path": path, "old_string": "echo two", "new_string": "echo three"})),
        calls(("grep", {"pattern": "echo three", "path": "/workspace/tools", "output_mode": "content"})),
        execute(f"sh {path}"),
        "done",
    )
    written, edited, found, executed = tool_results(run(sandbox, model))
    assert path in written
    assert path in edited
    assert f"{path}:" in found
    assert "2: echo three" in found
    assert executed.startswith("one\nthree\n")


async def test_concurrent_tool_calls_all_return_results(sandbox: KubernetesSandbox) -> None:
    paths = [f"/workspace/parallel/{number}.txt" for number in range(8)]
    model = script(
        calls(*(("write_file", {"file_path": path, "content": path}) for path in paths)),
        calls(
            *(("execute", {"command": f"cat {path}"}) for path in paths),
            ("ls", {"path": "/workspace/parallel"}),
            ("glob", {"pattern": "*.txt", "path": "/workspace/parallel"}),
            ("read_file", {"file_path": paths[0]}),
        ),
        calls(("delete", {"file_path": "/workspace/parallel"})),
        "done",
    )
    agent: Any = create_deep_agent(model, backend=sandbox)  # pyright: ignore[reportUnknownVariableType]
    results = tool_results(await agent.ainvoke({"messages": [("user", "go")]}))
    assert [path in result for path, result in zip(paths, results[8:16], strict=True)] == [True] * 8
    assert [all(path in listing for path in paths) for listing in results[16:18]] == [True, True]
    assert paths[0] in results[18]
    assert sandbox.ls("/workspace/parallel").error == "Path '/workspace/parallel': path_not_found"


def test_a_subagent_works_in_the_same_sandbox(sandbox: KubernetesSandbox) -> None:
    model = script(
        execute("echo from the agent > /workspace/shared.txt"),
        calls(("task", {"description": "read it", "subagent_type": "general-purpose"})),
        execute("cat /workspace/shared.txt; echo from the subagent >> /workspace/shared.txt"),
        "it was read",
        execute("cat /workspace/shared.txt"),
        "done",
    )
    results = tool_results(run(sandbox, model))
    assert "it was read" in results[1]
    assert results[2].startswith("from the agent\nfrom the subagent\n")


def test_a_large_result_of_another_tool_is_moved_into_the_sandbox(sandbox: KubernetesSandbox) -> None:
    @tool
    def report() -> str:
        """Return something long."""
        return "".join(f"row-{number}\n" for number in range(20_000))

    (shown,) = tool_results(run(sandbox, script(calls(("report", {})), "done"), tools=[report]))
    assert "/large_tool_results/" in shown
    assert "row-10000\n" not in shown
    assert sandbox.execute("grep -lr row-10000 /large_tool_results").exit_code == 0


def test_large_output_of_a_command_stays_in_the_sandbox_and_is_read_there(sandbox: KubernetesSandbox) -> None:
    first = execute(COUNT)
    kept = f"/large_tool_results/{first.tool_calls[0]['id']}"
    read = calls(("read_file", {"file_path": kept, "offset": 10_000, "limit": 1}))
    preview, page = tool_results(run(sandbox, script(first, read, "done")))
    assert kept in preview
    assert "line-0\n" in preview
    assert "line-10000" not in preview
    assert "line-10000" in page


def test_skills_and_memory_in_the_sandbox_are_in_the_prompt(sandbox: KubernetesSandbox) -> None:
    uploaded = sandbox.upload_files(
        [
            ("/workspace/skills/counting/SKILL.md", SKILL.encode()),
            ("/workspace/AGENTS.md", b"Answer in rhymes."),
        ]
    )
    assert [file.error for file in uploaded] == [None, None]
    model = script(calls(("read_file", {"file_path": "/workspace/skills/counting/SKILL.md"})), "done")
    state = run(sandbox, model, skills=["/workspace/skills/"], memory=["/workspace/AGENTS.md"])
    prompt = str(model.asked[0][0].content)
    assert "Answer in rhymes." in prompt
    assert "How to count what is in a file." in prompt
    assert "Use wc." in tool_results(state)[0]
