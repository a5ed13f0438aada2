"""The examples in the documentation of langchain-kubernetes-agent-sandbox 0.2, with a scripted model.

The import is that of the drop-in module. Claims are taken from pools now, which is the one line that the SDK's own
client changed.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType]
from k8s_agent_sandbox import SandboxClient  # pyright: ignore[reportPrivateImportUsage]
from k8s_agent_sandbox.models import SandboxLocalTunnelConnectionConfig
from langchain_core.tools import tool
from langgraph.prebuilt import InjectedState

from sandpod.compat.langchain_kubernetes_agent_sandbox import KubernetesAgentSandbox
from scripted import calls, execute, script, tool_results
from stage import by_exec_and_router

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stage import Place

pytestmark = pytest.mark.cluster

PRIMES = "print([n for n in range(2, 30) if all(n % d for d in range(2, n))])\n"
FIRST_TEN = "[2, 3, 5, 7, 11, 13, 17, 19, 23, 29]\n"


def build_sandbox(place: Place) -> KubernetesAgentSandbox:
    client: SandboxClient[Any] = SandboxClient(connection_config=SandboxLocalTunnelConnectionConfig())
    raw_sandbox = client.create_sandbox(place.pool, namespace=place.namespace)
    return KubernetesAgentSandbox(sandbox=raw_sandbox)


def ask(text: str, **state: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **state}


@by_exec_and_router
def test_an_agents_backend_keeps_its_files_and_shell_state(place: Place) -> None:
    sandbox = build_sandbox(place)
    path = f"{place.files}/primes.py"
    assert sandbox.upload_files([(f"{place.files}/limit.txt", b"30\n")])[0].error is None
    turns = script(
        calls(("write_file", {"file_path": path, "content": PRIMES})),
        execute(f"cd {place.files} && export RUN='python3 primes.py'"),
        "written",
        execute("$RUN; cat limit.txt"),
        "done",
    )
    agent: Any = create_deep_agent(model=turns, backend=sandbox)  # pyright: ignore[reportUnknownVariableType]
    agent.invoke(ask("Write a Python script that prints the first 10 primes."))
    result = agent.invoke(ask("Run it."))
    assert tool_results(result)[0].startswith(f"{FIRST_TEN}30\n")
    sandbox.sandbox.terminate()
    assert place.claims() == []


def tool_of(place: Place, kept: dict[str, KubernetesAgentSandbox]) -> Any:
    """The document's tool: the first call creates the sandbox, which has the files of the conversation."""

    def get_or_spawn(files: dict[str, Any]) -> KubernetesAgentSandbox:
        sandbox = kept.get("sandbox")
        if sandbox is not None and sandbox.sandbox.is_active:
            return sandbox
        kept["sandbox"] = sandbox = build_sandbox(place)
        payload: list[tuple[str, bytes]] = []
        for path, data in files.items():
            content = data.get("content", "")
            raw = base64.b64decode(content) if data.get("encoding") == "base64" else content.encode()
            payload.append((path if path.startswith("/") else f"/app/{path}", raw))
        if payload:
            assert [done.error for done in sandbox.upload_files(payload)] == [None] * len(payload)
        return sandbox

    @tool
    def execute_python(code: str, state: Annotated[dict[str, Any], InjectedState]) -> str:
        """Execute a Python 3 snippet in an ephemeral Kubernetes sandbox."""
        sandbox = get_or_spawn(state.get("files") or {})
        encoded = base64.b64encode(code.encode()).decode()
        command = (
            f'python3 -c \'import base64,sys;exec(compile(base64.b64decode("{encoded}").decode(),"<agent>","exec"))\''
        )
        response = sandbox.execute(command)
        return f"exit={response.exit_code}\n{response.output}"

    return execute_python


@by_exec_and_router
def test_a_sandbox_tool_has_the_files_of_the_conversation(place: Place) -> None:
    kept: dict[str, KubernetesAgentSandbox] = {}
    turns = script(
        calls(("execute_python", {"code": PRIMES})),
        calls(("execute_python", {"code": "print(open('/app/data.csv').read(), open('/app/raw').read())"})),
        calls(("execute_python", {"code": "raise SystemExit(3)"})),
        "done",
    )
    agent: Any = create_deep_agent(  # pyright: ignore[reportUnknownVariableType]
        model=turns, tools=[tool_of(place, kept)], system_prompt="You are a helpful assistant."
    )
    files = {
        "/app/data.csv": {"content": "a,b", "encoding": "utf-8"},
        "/app/raw": {"content": base64.b64encode(b"raw").decode(), "encoding": "base64"},
    }
    try:
        result = agent.invoke(ask("Plot the first 10 primes.", files=files))
    finally:
        sandbox = kept.pop("sandbox")
        sandbox.sandbox.terminate()
    assert tool_results(result) == [f"exit=0\n{FIRST_TEN}", "exit=0\na,b raw\n", "exit=3\n"]
    assert not sandbox.sandbox.is_active


@pytest.fixture
def session(place: Place) -> Iterator[Any]:
    """A sandbox of the SDK."""
    client: SandboxClient[Any] = SandboxClient(connection_config=SandboxLocalTunnelConnectionConfig())
    raw_sandbox = client.create_sandbox(place.pool, namespace=place.namespace)
    yield raw_sandbox
    raw_sandbox.terminate()


@by_exec_and_router
def test_a_timeout_is_set_for_a_sandbox_and_for_a_call_and_is_a_result(place: Place, session: Any) -> None:
    sandbox = KubernetesAgentSandbox(sandbox=session, timeout=120)
    late = sandbox.execute("echo begun; sleep 600", timeout=1)
    assert (late.exit_code, late.output) == (124, "begun\nCommand timed out after 1s")
    assert KubernetesAgentSandbox(sandbox=session, timeout=1).execute("sleep 600").exit_code == 124
    assert sandbox.execute("echo 600", timeout=600).output == "600\n"
    path = f"{place.files}/a.bin"
    assert [done.error for done in sandbox.upload_files([(path, b"\0"), ("a.bin", b"")])] == [None, "invalid_path"]
    assert [done.content for done in sandbox.download_files([path, "a.bin"])] == [b"\0", None]
    assert sandbox.id == session.sandbox_id
