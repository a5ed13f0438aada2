"""One sandbox per thread: created on demand, found again, replaced when lost, and deleted by its owner."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

from sandpod import KubernetesProviderConfig, KubernetesSandboxManager, SandboxError, SandboxNotFoundError
from scripted import calls, execute, script, thread, tool_results

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    MakeManager = Callable[..., KubernetesSandboxManager]

NEXT_PROCESS = """
import sys
sys.path.insert(0, sys.argv[1])
from sandpod import KubernetesProviderConfig, KubernetesSandboxManager
from scripted import execute, script, tool_results
manager = KubernetesSandboxManager(KubernetesProviderConfig(mode="local"), scope="restart")
agent = manager.create_agent(script(execute("cat note; echo $GREETING in $PWD"), "done"))
state = agent.invoke({"messages": ["go on"]}, {"configurable": {"thread_id": "t"}})
print(tool_results(state)[0])
manager.close()
"""


class State(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    sandbox_id: str


def ask(text: str = "go") -> Any:
    return {"messages": [("user", text)]}


def one_node(node: Any) -> Any:
    builder: Any = StateGraph(State)
    return builder.add_node("node", node).add_edge(START, "node").compile()


@pytest.fixture
def manager_of(local_config: Callable[..., KubernetesProviderConfig]) -> Iterator[MakeManager]:
    """Creates managers; their sandboxes are deleted after the test."""
    made: list[KubernetesSandboxManager] = []

    def make(**options: Any) -> KubernetesSandboxManager:
        manager = KubernetesSandboxManager(local_config(), **options)
        made.append(manager)
        return manager

    yield make
    for manager in made:
        manager.shutdown(all=True)


def ids_of(manager: KubernetesSandboxManager) -> list[str]:
    return [info.id for info in manager.provider.list(labels={"scope": manager.scope}).sandboxes]


def test_the_first_tool_call_creates_a_sandbox_that_later_turns_reuse(
    manager_of: MakeManager,
) -> None:
    manager = manager_of(scope="turns")
    turns = script(
        "nothing to do",
        execute("mkdir sub && cd sub && export COLOUR=blue && echo kept > note"),
        "done",
        execute("cat note && echo $COLOUR in $PWD"),
        "done",
    )
    agent = manager.create_agent(turns, checkpointer=InMemorySaver(), system_prompt="You are a test.")

    assert "sandbox_id" not in agent.invoke(ask(), thread("1"))
    assert ids_of(manager) == []
    first = agent.invoke(ask(), thread("1"))
    second = agent.invoke(ask(), thread("1"))

    assert tool_results(second)[-1].startswith("kept\nblue in /workspace/sub\n")
    assert first["sandbox_id"] == second["sandbox_id"] == agent.get_state(thread("1")).values["sandbox_id"]
    assert ids_of(manager) == [first["sandbox_id"]]
    (info,) = manager.provider.list(labels={"scope": "turns"}).sandboxes
    assert info.thread_id == "1"


async def test_async_turns_reuse_a_sandbox_and_each_thread_has_its_own(manager_of: MakeManager) -> None:
    manager = manager_of(scope="async")

    async def run(name: str) -> Any:
        agent = manager.create_agent(script(execute(f"echo {name} >> who; cat who"), "done"))
        return await agent.ainvoke(ask(), thread(name))

    states = await asyncio.gather(*(run(name) for name in ("a", "b", "c")))
    assert [tool_results(state)[0].splitlines()[0] for state in states] == ["a", "b", "c"]
    assert len({state["sandbox_id"] for state in states}) == 3
    await manager.ashutdown()
    assert ids_of(manager) == []


def test_steps_of_an_agent_stream_at_the_top_level(manager_of: MakeManager) -> None:
    agent = manager_of(scope="stream").create_agent(script(execute("echo hello"), "done"))
    steps = [name for update in agent.stream(ask(), thread("1"), stream_mode="updates") for name in update]
    assert steps.index("model") < steps.index("tools")


def test_concurrent_first_calls_create_one_sandbox(manager_of: MakeManager) -> None:
    manager = manager_of(scope="race")
    tools = [("execute", {"command": f"echo {n}; sleep 0.1"}) for n in range(4)]
    state = manager.create_agent(script(calls(*tools), "done")).invoke(ask(), thread("1"))
    assert sorted(result[0] for result in tool_results(state)) == ["0", "1", "2", "3"]
    assert ids_of(manager) == [state["sandbox_id"]]


def test_managers_share_sandboxes_only_within_one_scope(manager_of: MakeManager) -> None:
    one, replica, other = manager_of(scope="shared"), manager_of(scope="shared"), manager_of(scope="other")

    def run(manager: KubernetesSandboxManager, command: str) -> Any:
        return manager.create_agent(script(execute(command), "done")).invoke(ask(), thread("1"))

    made = run(one, "echo ours > note")
    found = run(replica, "cat note")
    elsewhere = run(other, "cat note")
    assert tool_results(found)[0].startswith("ours")
    assert found["sandbox_id"] == made["sandbox_id"] != elsewhere["sandbox_id"]
    assert "No such file" in tool_results(elsewhere)[0]

    other.shutdown(all=True)
    assert (ids_of(other), ids_of(one)) == ([], [made["sandbox_id"]])
    replica.close()
    assert ids_of(one) == [made["sandbox_id"]]


def test_default_scopes_differ_by_the_configuration_of_sandboxes(kubeconfig: Path) -> None:
    def scope(labels: dict[str, str] | None = None, **fields: Any) -> str:
        config = KubernetesProviderConfig(mode="raw", kubeconfig=str(kubeconfig), **fields)
        return KubernetesSandboxManager(config, default_labels=labels).scope

    scopes = [scope(), scope(namespace="agents"), scope(image="busybox"), scope({"team": "search"})]
    assert len(set(scopes)) == 4
    assert scope() == scopes[0]
    assert scope(default_labels={"team": "search"}) == scopes[3]


def test_shutdown_deletes_the_processs_sandboxes_or_with_all_the_whole_scope(manager_of: MakeManager) -> None:
    earlier, manager = manager_of(scope="shutdown"), manager_of(scope="shutdown")
    kept = earlier.create_agent(script(execute("true"), "done")).invoke(ask(), thread("kept"))["sandbox_id"]
    manager.create_agent(script(execute("true"), "done")).invoke(ask(), thread("used"))
    manager.shutdown()
    assert ids_of(earlier) == [kept]
    earlier.close()
    manager_of(scope="shutdown").shutdown(all=True)
    assert ids_of(earlier) == []


def test_shutdown_ends_within_its_timeout_and_names_every_sandbox_that_is_left(
    manager_of: MakeManager, kubeconfig: Path
) -> None:
    with pytest.raises(ValueError, match="shutdown_timeout"):
        manager_of(shutdown_timeout=0)
    silent = KubernetesProviderConfig(mode="raw", kubeconfig=str(kubeconfig), allow_insecure_api_server=True)
    manager = KubernetesSandboxManager(silent, shutdown_timeout=0.2)
    for sandbox_id in ("one", "two"):
        manager._threads.native().note_used(sandbox_id)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    for _ in range(2):
        with pytest.raises(SandboxError, match=r"2 of 2 sandboxes were not deleted: .*one.*") as left:
            manager.shutdown()
        assert (left.value.code, "two (It was not gone in time)" in str(left.value)) == ("not_deleted", True)


def test_a_manager_creates_nothing_after_shutdown(manager_of: MakeManager) -> None:
    manager = manager_of(scope="over")
    agent = manager.create_agent(script(execute("true"), "done", execute("true"), "done"))
    with manager:
        agent.invoke(ask(), thread("1"))
    state = agent.invoke(ask(), thread("1"))
    assert "was shut down" in tool_results(state)[0]
    assert ids_of(manager) == []


def test_a_sandbox_lost_between_turns_is_replaced_and_reported_by_a_command(manager_of: MakeManager) -> None:
    manager = manager_of(scope="lost")
    turns = script(execute("echo kept > note"), "done", execute("ls"), "done", execute("ls"), "done")
    agent = manager.create_agent(turns, checkpointer=InMemorySaver())
    before = agent.invoke(ask(), thread("1"))["sandbox_id"]
    manager.provider.delete(sandbox_id=before)
    replaced = agent.invoke(ask(), thread("1"))
    assert replaced["sandbox_id"] == before
    assert "has been replaced" in tool_results(replaced)[-1]
    assert "note" not in tool_results(replaced)[-1]
    assert "replaced" not in tool_results(agent.invoke(ask(), thread("1")))[-1]


def test_a_loss_during_a_turn_is_a_result_and_the_next_call_has_a_new_sandbox(manager_of: MakeManager) -> None:
    manager = manager_of(scope="lost-in-turn")
    turns = script(execute("true"), execute("echo on the old one"), execute("echo on the new one"), "done")
    agent = manager.create_agent(turns)
    results: list[str] = []
    for update in agent.stream(ask(), thread("1"), stream_mode="updates"):
        if "tools" in update:
            results.append(str(update["tools"]["messages"][0].content))
            if len(results) == 1:
                manager.provider.delete(sandbox_id=ids_of(manager)[0])
    assert "on the old one" not in results[1]
    assert "on the new one" in results[2]
    assert "has been replaced" in results[2]


def test_with_on_lost_error_a_lost_sandbox_is_not_replaced(manager_of: MakeManager) -> None:
    with pytest.raises(ValueError, match="on_lost"):
        manager_of(on_lost="ignore")
    manager = manager_of(scope="stays-lost", on_lost="error")
    agent = manager.create_agent(script(execute("true"), "done", execute("ls"), execute("ls"), "done"))
    manager.provider.delete(sandbox_id=agent.invoke(ask(), thread("1"))["sandbox_id"])
    results = tool_results(agent.invoke(ask(), thread("1")))
    assert ["the sandbox is gone" in result for result in results] == [True, True]
    assert ids_of(manager) == []


def test_without_a_thread_id_the_error_explains_how_to_pass_one(manager_of: MakeManager) -> None:
    agent = manager_of(scope="none").create_agent(script(execute("true"), "done"))
    with pytest.raises(ValueError, match="no thread_id in LangGraph config"):
        agent.invoke(ask())


def test_a_restarted_process_finds_files_and_shell_again(manager_of: MakeManager) -> None:
    manager = manager_of(scope="restart")
    command = "mkdir sub && cd sub && export GREETING=hello && echo kept > note"
    manager.create_agent(script(execute(command), "done")).invoke(ask(), thread("t"))
    here = str(Path(__file__).parent)
    again = subprocess.run([sys.executable, "-c", NEXT_PROCESS, here], check=True, capture_output=True, text=True)
    assert again.stdout.startswith("kept\nhello in /workspace/sub\n")
    assert len(ids_of(manager)) == 1


async def test_a_setup_node_writes_the_id_and_keeps_that_of_an_existing_sandbox(manager_of: MakeManager) -> None:
    manager = manager_of(scope="nodes")
    older = await manager.get_or_reconnect(None)
    graph = one_node(manager.create_setup_node())
    assert (await graph.ainvoke({"sandbox_id": older.id}, thread("1")))["sandbox_id"] == older.id
    assert manager.backend().id == "nodes"
    await manager.provider.adelete(sandbox_id=older.id)
    replaced = (await graph.ainvoke({"sandbox_id": older.id}, thread("1")))["sandbox_id"]
    assert replaced != older.id
    assert (await graph.ainvoke({"sandbox_id": "Not An Id!"}, thread("1")))["sandbox_id"] == replaced
    assert (await manager.get_or_reconnect(replaced)).id == replaced


async def test_l5_a_custom_node_awaits_the_sandbox_of_an_id(manager_of: MakeManager) -> None:
    manager = manager_of(scope="own-node")

    async def node(state: State) -> dict[str, str]:
        sandbox = await manager.get_or_reconnect(state.get("sandbox_id"))
        await sandbox.aexecute("echo turn >> turns")
        return {"sandbox_id": sandbox.id}

    graph = one_node(node)
    first = (await graph.ainvoke({}))["sandbox_id"]
    assert (await graph.ainvoke({"sandbox_id": first}))["sandbox_id"] == first
    assert (await manager.get_or_reconnect(first)).execute("cat turns").output == "turn\nturn\n"
    await manager.provider.adelete(sandbox_id=first)
    assert (await graph.ainvoke({"sandbox_id": first}))["sandbox_id"] != first, "a missing sandbox is replaced"


async def test_an_agent_node_runs_the_agent_in_the_threads_sandbox(manager_of: MakeManager) -> None:
    manager = manager_of(scope="agent-node")
    node = manager.create_agent_node(script(execute("echo hello"), "done"), system_prompt="You are a test.")
    graph = one_node(node)
    state = await graph.ainvoke(ask(), thread("1"))
    assert tool_results(state)[0].startswith("hello")
    assert ids_of(manager) == [state["sandbox_id"]]


def test_cleanup_runs_in_the_background_from_the_first_sandbox_on(
    manager_of: MakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned = threading.Event()
    manager = manager_of(scope="sweep", cleanup_interval=0.05)
    cleanup = KubernetesSandboxManager.cleanup

    def watched(self: KubernetesSandboxManager, max_idle_seconds: int | None = None) -> Any:
        result = cleanup(self, max_idle_seconds)
        cleaned.set()
        return result

    monkeypatch.setattr(KubernetesSandboxManager, "cleanup", watched)
    assert not cleaned.wait(0.2)
    manager.create_agent(script(execute("true"), "done")).invoke(ask(), thread("1"))
    assert cleaned.wait(10)
    with pytest.raises(ValueError, match="more than 0"):
        manager_of(cleanup_interval=0)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_finds_the_threads_sandbox_and_cleans_up_by_itself(
    manager_of: MakeManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = manager_of(scope="forked", cleanup_interval=0.05)
    agent = manager.create_agent(script(execute("echo kept > note"), "done", execute("cat note"), "done"))
    agent.invoke(ask(), thread("1"))
    child = os.fork()
    if child == 0:
        cleaned = threading.Event()
        monkeypatch.setattr(manager, "cleanup", cleaned.set)
        said = tool_results(agent.invoke(ask(), thread("1")))[0]
        (tmp_path / "said").write_text(f"{said.splitlines()[0]}, cleaned: {cleaned.wait(10)}")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "said").read_text() == "kept, cleaned: True"
    assert len(ids_of(manager)) == 1


def test_cleanup_deletes_idle_sandboxes_and_the_thread_gets_another(manager_of: MakeManager) -> None:
    manager = manager_of(scope="idle")
    agent = manager.create_agent(script(execute("true"), "done", execute("echo again"), "done"))
    before = agent.invoke(ask(), thread("1"))["sandbox_id"]
    assert before in manager.cleanup(max_idle_seconds=0).deleted
    with pytest.raises(SandboxNotFoundError):
        manager.provider.reconnect(before)
    assert "again" in tool_results(agent.invoke(ask(), thread("1")))[-1]


def test_subagents_and_all_file_tools_work_in_the_same_sandbox(manager_of: MakeManager) -> None:
    manager = manager_of(scope="tools")
    turns = script(
        calls(("write_file", {"file_path": "/workspace/a.txt", "content": "one\ntwo\n"})),
        calls(("edit_file", {"file_path": "/workspace/a.txt", "old_string": "two", "new_string": "three"})),
        calls(("task", {"description": "count", "subagent_type": "general-purpose"})),
        execute("wc -l < a.txt"),
        "two lines",
        calls(
            ("grep", {"pattern": "three", "path": "/workspace"}),
            ("glob", {"pattern": "*.txt", "path": "/workspace"}),
            ("ls", {"path": "/workspace"}),
            ("read_file", {"file_path": "/workspace/a.txt"}),
        ),
        "done",
    )
    results = tool_results(manager.create_agent(turns).invoke(ask(), thread("1")))
    assert "two lines" in results[2]
    assert all("a.txt" in result for result in results[3:6])
    assert "three" in results[6]
    assert len(ids_of(manager)) == 1


def test_large_output_stays_in_the_sandbox_and_can_be_read_there(manager_of: MakeManager) -> None:
    command = "i=0; while [ $i -lt 20000 ]; do echo line-$i; i=$((i+1)); done"
    turns = script(execute(command), "done")
    manager = manager_of(scope="large")
    result = tool_results(manager.create_agent(turns).invoke(ask(), thread("1")))[0]
    assert "/large_tool_results/" in result
    assert "line-0\n" in result
    assert "line-10000\n" not in result
    sandbox = manager.provider.reconnect(ids_of(manager)[0])
    assert sandbox.execute("grep -c line /large_tool_results/*").output == "20000\n"


@pytest.mark.cluster
def test_on_a_cluster_a_thread_keeps_its_pod_and_shutdown_deletes_it(
    raw_config: Callable[..., KubernetesProviderConfig],
) -> None:
    manager = KubernetesSandboxManager(raw_config(image="sandpod.test/busybox:1"), default_labels={"team": "search"})
    turns = script(execute("cd /tmp && echo kept > note"), "done", execute("cat note"), "done")
    agent = manager.create_agent(turns, checkpointer=InMemorySaver())
    with manager:
        made = agent.invoke(ask(), thread("user@example.com/1"))
        again = agent.invoke(ask(), thread("user@example.com/1"))
        assert tool_results(again)[-1].startswith("kept")
        assert made["sandbox_id"] == again["sandbox_id"]
        (info,) = manager.provider.list(labels={"scope": manager.scope}).sandboxes
        assert info.thread_id == "user@example.com/1"
    assert manager.provider.list(labels={"scope": manager.scope}).sandboxes == []
