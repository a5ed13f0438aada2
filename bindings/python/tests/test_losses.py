"""Lost files of a sandbox that no process was attached to: the first result of any call reports the loss."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from next_process import go_on
from objects import kubectl_of
from sandpod import KubernetesProvider, KubernetesProviderConfig, KubernetesSandboxManager, Sandbox, SandboxError
from sandpod.compat._core import CoreSandbox
from sandpod.compat._owned import OwnedSandbox
from scripted import calls, execute, script, thread, tool_results

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from next_process import Tool
    from sandpod import KubernetesSandbox

    MakeConfig = Callable[..., KubernetesProviderConfig]

NOTE = "/workspace/note"
WRITE: Tool = ("write_file", {"file_path": NOTE, "content": "kept"})
TOOLS: list[Tool] = [
    WRITE,
    ("edit_file", {"file_path": NOTE, "old_string": "kept", "new_string": "changed"}),
    ("read_file", {"file_path": NOTE}),
    ("ls", {"path": "/workspace"}),
    ("glob", {"pattern": "*", "path": "/workspace"}),
    ("grep", {"pattern": "kept", "path": "/workspace"}),
    ("delete", {"file_path": NOTE}),
    ("execute", {"command": f"cat {NOTE}"}),
]
GONE = "its files and processes are gone"

CALLS: dict[str, Callable[[KubernetesSandbox, Path], object]] = {
    "execute": lambda sandbox, _: sandbox.execute("true"),
    "read": lambda sandbox, _: sandbox.read(NOTE),
    "write": lambda sandbox, _: sandbox.write(NOTE, "new"),
    "edit": lambda sandbox, _: sandbox.edit(NOTE, "old", "new"),
    "delete": lambda sandbox, _: sandbox.delete(NOTE),
    "ls": lambda sandbox, _: sandbox.ls("/workspace"),
    "glob": lambda sandbox, _: sandbox.glob("*", "/workspace"),
    "grep": lambda sandbox, _: sandbox.grep("kept", "/workspace"),
    "upload": lambda sandbox, _: sandbox.upload_files([(NOTE, b"new")]),
    "download": lambda sandbox, _: sandbox.download_files([NOTE]),
    "offload": lambda sandbox, _: sandbox.execute_with_offload("true", NOTE, max_inline_bytes=100),
    "aexecute": lambda sandbox, _: asyncio.run(sandbox.aexecute("true")),
    "awrite": lambda sandbox, _: asyncio.run(sandbox.awrite(NOTE, "new")),
    "start": lambda sandbox, _: sandbox.start("true"),
    "terminal": lambda sandbox, _: sandbox.start("true", terminal=(24, 80)),
    "stream": lambda sandbox, _: list(sandbox.stream("true")),
    "processes": lambda sandbox, _: sandbox.processes(),
    "upload_directory": lambda sandbox, here: sandbox.upload_directory(here, "/workspace"),
    "download_directory": lambda sandbox, here: sandbox.download_directory("/workspace", here),
}


class State(TypedDict, total=False):
    sandbox_id: str
    sandbox_place: str
    said: str


def said_by(call: Callable[[KubernetesSandbox, Path], object], sandbox: KubernetesSandbox, here: Path) -> str:
    try:
        return repr(call(sandbox, here))
    except SandboxError as error:
        if error.code != "replaced":
            raise
        return str(error)


def write_in(manager: KubernetesSandboxManager, *threads: str) -> dict[str, dict[str, str]]:
    """Let each thread write the note; return its state."""
    states: dict[str, dict[str, str]] = {}
    for name in threads:
        state = manager.create_agent(script(calls(WRITE), "done")).invoke({"messages": ["go"]}, thread(name))
        assert tool_results(state) == [f"Updated file {NOTE}"]
        states[name] = {"sandbox_id": state["sandbox_id"], "sandbox_place": state["sandbox_place"]}
    return states


@pytest.fixture
def expired(local_config: MakeConfig) -> Iterator[str]:
    """Return the id of a sandbox that lost its files by an expiry and was recreated, but not used."""
    provider = KubernetesProvider(local_config())
    sandbox_id = provider.get_or_create(ttl_seconds=1).id
    while sandbox_id not in [info.id for info in provider.list(status="terminated").sandboxes]:
        time.sleep(0.05)
    give_time(provider, sandbox_id)
    yield sandbox_id
    provider.delete(sandbox_id=sandbox_id)


def give_time(provider: KubernetesProvider, sandbox_id: str) -> None:
    """Find a sandbox before its recreated place expires, too."""
    while True:
        try:
            provider.get_or_create(sandbox_id=sandbox_id)
            provider.extend(sandbox_id, 3600)
        except SandboxError:
            continue
        return


def test_in_a_new_process_the_first_result_of_every_tool_reports_lost_files(local_config: MakeConfig) -> None:
    manager = KubernetesSandboxManager(local_config(), scope="every-tool")
    states = write_in(manager, *(name for name, _ in TOOLS))
    manager.close()
    provider = KubernetesProvider(local_config())
    for state in states.values():
        provider.delete(sandbox_id=state["sandbox_id"])

    threads = {name: ([(name, given)] * 2, states[name]) for name, given in TOOLS}
    answered = go_on(local_config(), "every-tool", threads)

    for name, answer in answered.items():
        first, second = answer["said"]
        assert GONE in first, f"{name}: {first}"
        assert "replaced" not in second, f"{name}: {second}"
        assert answer["state"]["sandbox_place"] != states[name]["sandbox_place"]
    assert "This call did nothing" in answered["write_file"]["said"][0]
    assert answered["write_file"]["said"][1] == f"Updated file {NOTE}"
    third = go_on(local_config(), "every-tool", {"ls": ([("ls", {"path": "/workspace"})], answered["ls"]["state"])})
    assert "replaced" not in third["ls"]["said"][0]
    KubernetesSandboxManager(local_config(), scope="every-tool").shutdown(all=True)


def test_only_the_first_call_of_every_kind_reports_lost_files(
    expired: str, local_config: MakeConfig, tmp_path: Path
) -> None:
    again = KubernetesProvider(local_config())
    # All sandboxes are found before any has reported the loss.
    sandboxes = {kind: again.get_or_create(sandbox_id=expired) for kind in CALLS}
    for kind, sandbox in sandboxes.items():
        first, second = (said_by(CALLS[kind], sandbox, tmp_path) for _ in range(2))
        assert GONE in first, f"{kind}: {first}"
        assert "replaced" not in second, f"{kind}: {second}"
    again.close()
    assert not KubernetesProvider(local_config()).get_or_create(sandbox_id=expired).notices()


def test_a_plain_sandbox_raises_until_the_loss_was_reported(expired: str, local_config: MakeConfig) -> None:
    raising, asking = (Sandbox.create(local_config(), sandbox_id=expired) for _ in range(2))
    with pytest.raises(SandboxError, match=GONE) as raised:
        raising.write(NOTE, "new")
    assert raised.value.code == "replaced"
    raising.write(NOTE, "new")
    (notice,) = asking.notices()
    assert GONE in notice
    assert asking.read_text(NOTE) == "new"


async def test_a_report_of_a_cancelled_call_is_repeated(expired: str, local_config: MakeConfig) -> None:
    sandbox = await KubernetesProvider(local_config()).aget_or_create(sandbox_id=expired)
    for _ in range(20):
        given_up = asyncio.ensure_future(sandbox.awrite(NOTE, "new"))
        await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
    assert GONE in str((await sandbox.awrite(NOTE, "new")).error)
    assert (await sandbox.awrite(NOTE, "new")).error is None


def test_a_deleted_sandbox_is_reported_once_also_with_skills_and_memory(local_config: MakeConfig) -> None:
    saver, scope = InMemorySaver(), "with-skills"
    own: dict[str, Any] = {"checkpointer": saver, "memory": ["/workspace/AGENTS.md"], "skills": ["/workspace/skills"]}
    first = KubernetesSandboxManager(local_config(), scope=scope)
    sandbox_id = first.create_agent(script(calls(WRITE), "done"), **own).invoke({"messages": ["go"]}, thread("1"))[
        "sandbox_id"
    ]
    first.close()
    KubernetesProvider(local_config()).delete(sandbox_id=sandbox_id)

    # A new process has not loaded skills and memory for another conversation of the thread.
    for checkpointer, state in ((None, {"sandbox_id": sandbox_id}), (saver, {})):
        own["checkpointer"] = checkpointer
        with KubernetesSandboxManager(local_config(), scope=scope) as manager:
            turns = script(calls(WRITE), calls(WRITE), "done", execute(f"cat {NOTE}"), "done")
            agent = manager.create_agent(turns, **own)
            results = tool_results(agent.invoke({"messages": ["go on"], **state}, thread("1")))[-2:]
            assert GONE in results[0]
            assert results[1] == f"Updated file {NOTE}"
            if checkpointer:
                assert tool_results(agent.invoke({"messages": ["and on"]}, thread("1")))[-1].startswith("kept")


def test_a_command_that_creates_its_directory_keeps_the_report(expired: str, local_config: MakeConfig) -> None:
    class Deep(CoreSandbox):
        _working_dir = "/workspace/deep/inside"

    sandbox = Deep(KubernetesProvider(local_config()).native().get_or_create(expired, {}, None, None).wait())
    output = sandbox.execute("pwd").output
    assert GONE in output
    assert output.endswith("]\n/workspace/deep/inside\n")
    assert sandbox.execute("pwd").output == "/workspace/deep/inside\n"


def test_an_owned_sandbox_reports_a_replacement_but_not_a_stop(
    local_config: MakeConfig,
) -> None:
    provider = KubernetesProvider(local_config())
    sandbox = OwnedSandbox(provider)
    assert sandbox.write(NOTE, "kept").error is None
    provider.delete(sandbox_id=sandbox.id)
    assert "the sandbox is gone" in str(sandbox.write(NOTE, "kept").error)
    assert GONE in str(sandbox.write(NOTE, "kept").error)
    assert sandbox.write(NOTE, "kept").error is None
    sandbox.stop(delete=True)
    assert sandbox.write(NOTE, "kept").error is None
    sandbox.stop(delete=True)


async def test_a_setup_node_keeps_a_lost_place_until_a_result_has_reported_it(
    local_config: MakeConfig,
) -> None:
    async with KubernetesSandboxManager(local_config(), scope="setup") as manager:
        builder: Any = StateGraph(State)
        builder.add_node("setup", manager.create_setup_node()).add_edge(START, "setup")
        graph, backend = builder.compile(), manager.backend()
        lost = {"sandbox_id": "sp-gone", "sandbox_place": "gone/1"}
        found = await graph.ainvoke(lost, thread("1"))
        assert found["sandbox_place"] == "gone/1"

        def write(_: State) -> State:
            return {"said": str(backend.write(NOTE, "new").error)}

        writer: Any = StateGraph(State)
        used = writer.add_node("write", write).add_edge(START, "write").compile()
        assert GONE in used.invoke({}, thread("1"))["said"]
        assert used.invoke({}, thread("1"))["said"] == "None"
        assert (await graph.ainvoke(found, thread("1")))["sandbox_place"] not in {None, "gone/1"}


@pytest.mark.cluster
@pytest.mark.parametrize("mode", ["raw", "agent-sandbox"])
@pytest.mark.parametrize("deleted", ["pod", "anchor"])
def test_on_a_cluster_a_new_process_reports_lost_files_with_its_first_result(
    mode: str, deleted: str, request: pytest.FixtureRequest
) -> None:
    of_mode = {"raw": ("raw_config", "lease", {"image": "sandpod.test/busybox:1"})}
    fixture, anchor, fields = of_mode.get(mode, ("agent_sandbox_config", "sandboxclaim", {}))
    config: KubernetesProviderConfig = request.getfixturevalue(fixture)(**fields)
    scope, tools = f"{mode}-{deleted}", [WRITE, ("ls", {"path": "/workspace"}), ("execute", {"command": "ls"})]
    manager = KubernetesSandboxManager(config, scope=scope)
    states = write_in(manager, *(name for name, _ in tools))
    manager.close()
    kubectl = kubectl_of(config.namespace)
    for state in states.values():
        claim = state["sandbox_id"]
        pods = json.loads(kubectl("get", "pods", "--output=json"))["items"]
        (pod,) = (pod["metadata"]["name"] for pod in pods if is_of(pod, claim))
        kubectl("delete", *(("pod", pod, "--grace-period=1") if deleted == "pod" else (anchor, claim)), "--wait")

    threads = {name: ([(name, given)] * 2, states[name] if deleted == "anchor" else {}) for name, given in tools}
    answered = go_on(config, scope, threads)

    for name, answer in answered.items():
        first, second = answer["said"]
        assert GONE in first, f"{name}: {first}"
        assert "replaced" not in second, f"{name}: {second}"
    again = go_on(config, scope, {name: ([(name, given)], {}) for name, given in tools})
    assert not any("replaced" in answer["said"][0] for answer in again.values())
    KubernetesSandboxManager(config, scope=scope).shutdown(all=True)


def is_of(pod: dict[str, Any], sandbox_id: str) -> bool:
    """Return whether a Pod belongs to the sandbox: by its label in raw mode, by its name in agent-sandbox mode."""
    labels = pod["metadata"].get("labels", {})
    return sandbox_id in {labels.get("sandpod.dev/id"), pod["metadata"]["name"]}
