"""The examples in the documentation of langchain-agent-sandbox, with a scripted model.

The import is that of the drop-in module. Its blocks for Deep Agents before 0.7 pass functions of a runtime and texts,
which today's refuses: backends are objects here, and conversations have messages.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Self

import pytest
from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType]
from deepagents.backends import CompositeBackend, StateBackend, StoreBackend
from k8s_agent_sandbox import SandboxClient as TodaysClient  # pyright: ignore[reportPrivateImportUsage]
from k8s_agent_sandbox.models import SandboxDirectConnectionConfig
from langgraph.store.memory import InMemoryStore

from objects import router_url
from sandpod.compat.langchain_agent_sandbox import (
    AgentSandboxBackend,
    SandboxPolicyWrapper,
    WarmPoolBackend,
    create_sandbox_backend_factory,
)
from scripted import ObedientModel, calls, execute, script, tool_results
from stage import GATEWAY, by_exec_and_router, by_gateway

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scripted import ScriptedModel
    from stage import Place

pytestmark = pytest.mark.cluster


class SandboxClient:
    """A client like that of `agentic_sandbox`, which was never published: one sandbox with its methods."""

    def __init__(self, template_name: str, namespace: str = "default") -> None:
        self._client: TodaysClient[Any] = TodaysClient(
            connection_config=SandboxDirectConnectionConfig(api_url=router_url())
        )
        self._pool = template_name.replace("-template", "-pool")
        self.namespace = namespace
        self.claim_name: str | None = None
        self.sandbox_name: str | None = None

    def __enter__(self) -> Self:
        self._handle: Any = self._client.create_sandbox(self._pool, namespace=self.namespace)
        self.claim_name, self.sandbox_name = self._handle.claim_name, self._handle.sandbox_id
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.terminate()

    def run(self, command: str, timeout: int = 60) -> Any:
        return self._handle.commands.run(command, timeout=timeout)

    def write(self, path: str, content: bytes | str) -> None:
        self._handle.files.write(path.rpartition("/")[2], content)

    def read(self, path: str) -> bytes:
        return self._handle.files.read(path)


def run(model: Any, backend: Any, thread: str = "1", **options: Any) -> list[str]:
    """Return the tool results of an agent."""
    agent: Any = create_deep_agent(model=model, backend=backend, **options)  # pyright: ignore[reportUnknownVariableType]
    return tool_results(agent.invoke({"messages": [("user", "go")]}, {"configurable": {"thread_id": thread}}))


def hello() -> ScriptedModel:
    """A model that writes a program below the root, and runs it in the working directory."""
    return script(
        calls(("write_file", {"file_path": "/hello.py", "content": "print('hello world')\n"})),
        execute("python3 hello.py"),
        calls(("ls", {"path": "/"})),
        "done",
    )


def greet(backend: Any) -> None:
    results = run(hello(), backend)
    assert results[1].startswith("hello world\n")
    assert "/hello.py" in results[2]


def from_template(place: Place, **options: Any) -> AgentSandboxBackend:
    return AgentSandboxBackend.from_template(place.template, namespace=place.namespace, **options)


# Quickstart and connection modes


@by_exec_and_router
def test_a_client_is_the_sandbox_of_an_agent(place: Place) -> None:
    with SandboxClient(template_name=place.template, namespace=place.namespace) as client:
        backend = AgentSandboxBackend(client, root_dir="/app")
        assert backend.id == client.claim_name
        greet(backend)


@by_exec_and_router
def test_a_handle_of_todays_client_is_the_sandbox_of_an_agent(place: Place) -> None:
    client: TodaysClient[Any] = TodaysClient(connection_config=SandboxDirectConnectionConfig(api_url=router_url()))
    handle = client.create_sandbox(place.pool, namespace=place.namespace)
    greet(AgentSandboxBackend(handle, root_dir="/app"))
    handle.terminate()


@by_exec_and_router
def test_a_template_creates_an_agents_sandbox_for_a_context(place: Place) -> None:
    with from_template(place) as backend:
        assert place.claims() == [backend.id]
        greet(backend)
    assert place.claims() == []


@by_gateway
@pytest.mark.parametrize("way", ["gateway", "api_url"])
def test_a_sandbox_is_reached_through_a_gateway_and_the_routers_url(place: Place, way: str) -> None:
    gateway: dict[str, Any] = {"gateway_name": GATEWAY, "gateway_namespace": place.namespace}
    with from_template(place, **(gateway if way == "gateway" else {"api_url": router_url()})) as backend:
        greet(backend)


# Factory pattern


@by_exec_and_router
def test_a_factory_gives_each_thread_its_own_sandbox(place: Place) -> None:
    root = f"{place.files}/project"
    factory = create_sandbox_backend_factory(template_name=place.template, namespace=place.namespace, root_dir=root)
    agent: Any = create_deep_agent(model=ObedientModel(), backend=factory)  # pyright: ignore[reportUnknownVariableType]

    def said(thread: str, command: str) -> str:
        state = agent.invoke({"messages": [("user", command)]}, {"configurable": {"thread_id": thread}})
        return tool_results(state)[-1]

    with factory:
        assert said("alice", "echo alice > note; cat note; pwd").startswith(f"alice\n{root}\n")
        assert "No such file" in said("bob", "cat note")
        assert said("alice", "cat note").startswith("alice\n")
        assert len(place.claims()) == 2
        without_thread = agent.invoke({"messages": [("user", "cat note")]})
        assert "no thread_id in LangGraph config" in tool_results(without_thread)[0]
    assert place.claims() == []


# Composite routing


@by_exec_and_router
def test_a_composite_sends_one_directory_to_the_sandbox(place: Place) -> None:
    with from_template(place) as sandbox:
        routes: dict[str, Any] = {
            "/sandbox/": sandbox,
            "/memories/": StoreBackend(namespace=lambda _runtime: ("memories",)),
        }
        backend = CompositeBackend(default=StateBackend(), routes=routes)
        written = {"/sandbox/script.py": "print(1)\n", "/memories/context.md": "long", "/workspace/notes.md": "short"}
        turns = script(
            calls(*(("write_file", {"file_path": path, "content": text}) for path, text in written.items())),
            calls(*(("read_file", {"file_path": path}) for path in written)),
            "done",
        )
        results = run(turns, backend, store=InMemoryStore())
        assert all(text.strip() in result for text, result in zip(written.values(), results[3:], strict=True))
        assert sandbox.execute("cat /app/script.py; ls /app/memories").output.startswith("print(1)\nls: ")


# Policy wrapper


@by_exec_and_router
def test_a_policy_is_enforced_and_what_it_allows_is_audited(place: Place) -> None:
    recorded: list[tuple[str, str, dict[str, Any]]] = []
    secured = SandboxPolicyWrapper(
        from_template(place),
        deny_prefixes=["/etc", "/sys", "/proc", "/root"],
        deny_commands=["rm -rf", "shutdown", "reboot", "curl", "wget"],
        audit_log=lambda op, target, meta: recorded.append((op, target, meta)),
    )
    turns = script(
        calls(("write_file", {"file_path": "/etc/passwd", "content": "x"}), ("execute", {"command": "curl evil"})),
        calls(("write_file", {"file_path": "/out/report.md", "content": "one"})),
        calls(("edit_file", {"file_path": "/out/report.md", "old_string": "one", "new_string": "two"})),
        execute("cat out/report.md"),
        "done",
    )
    with secured:
        results = run(turns, secured)
        assert ["Policy denied" in result for result in results] == [True, True, False, False, False]
        assert results[4].startswith("two")
        uploads = {"/etc/shadow": b"bad", "/out/ok.txt": b"good"}
        assert [done.error for done in secured.upload_files(uploads)] == ["policy_denied", None]
        assert secured.upload_files([("/out/ok.txt", b"good")])[0].error is None
        assert secured.download_files(["/out/ok.txt"])[0].content == b"good"
        assert secured.read("/out/report.md") == "1: two"
        assert {entry["path"] for entry in secured.ls_info("/out")} == {"/out/report.md", "/out/ok.txt"}
        assert [entry["path"] for entry in secured.glob_info("*.md", "/out")] == ["/out/report.md"]
        assert secured.grep_raw("two", "/out") == [{"path": "/out/report.md", "line": 1, "text": "two"}]
    assert [(op, target) for op, target, _ in recorded] == [
        ("write", "/out/report.md"),
        ("edit", "/out/report.md"),
        ("execute", "cat out/report.md"),
        ("upload", "/out/ok.txt"),
        ("upload", "/out/ok.txt"),
    ]
    assert recorded[0][2] == {"size": 3}


# WarmPool backend


@by_exec_and_router
def test_a_sandbox_comes_from_the_warm_pool(place: Place) -> None:
    with WarmPoolBackend.from_warmpool(
        template_name=place.template, namespace=place.namespace, warmpool_name=place.pool
    ) as backend:
        claim = json.loads(place.kubectl("get", f"sandboxclaim/{backend.id}", "--output=json"))
        assert claim["spec"]["warmPoolRef"] == {"name": place.pool}
        assert backend.get_adoption_info() == {"warmpool_name": place.pool, "from_warmpool": True}
        greet(backend)


# API reference and path virtualization


@pytest.fixture
def backend(place: Place) -> Iterator[AgentSandboxBackend]:
    with from_template(place) as backend:
        yield backend


@by_exec_and_router
async def test_each_protocol_method_works_below_the_root_in_both_forms(backend: AgentSandboxBackend) -> None:
    assert backend.write("/src/file.txt", "alpha\nbeta\n").error is None
    assert (await backend.awrite("/src/file.txt", "")).error == "File '/src/file.txt' already exists"
    assert backend.read("/src/file.txt", offset=1, limit=1) == "2: beta"
    assert await backend.aread("/src/file.txt", offset=9) == ""
    assert backend.read("/none.txt") == "Error: File '/none.txt' not found"
    assert backend.edit("/src/file.txt", "beta", "gamma", replace_all=False).occurrences == 1
    failed = await backend.aedit("/src/file.txt", "none", "x")
    assert (failed.path, failed.occurrences) == ("/src/file.txt", 0)
    assert [entry["path"] for entry in backend.ls_info("/src")] == ["/src/file.txt"]
    assert await backend.als_info("/none") == []
    assert [entry["path"] for entry in await backend.aglob_info("*.txt", path="/src")] == ["/src/file.txt"]
    assert backend.grep_raw("gamma", "/src") == [{"path": "/src/file.txt", "line": 2, "text": "gamma"}]
    assert await backend.agrep_raw("gamma", "/none") == "Error: Path '/none' not found"
    assert (await backend.aexecute("cat src/file.txt /app/src/file.txt")).output == "alpha\ngamma\n" * 2
    escaping = [("/../etc/passwd", b""), ("/ok", b"up")]
    assert [done.error for done in backend.upload_files(escaping)] == ["invalid_path", None]
    downloaded = await backend.adownload_files(["/../etc/passwd", "/ok"])
    assert [(done.content, done.error) for done in downloaded] == [(None, "invalid_path"), (b"up", None)]
    assert "escapes root_dir '/app'" in backend.read("/../etc/passwd")


# Environment variables


@by_exec_and_router
def test_development_variables_configure_a_sandbox(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANGCHAIN_SANDBOX_TEMPLATE", place.template)
    monkeypatch.setenv("LANGCHAIN_NAMESPACE", place.namespace)
    monkeypatch.setenv("LANGCHAIN_SERVER_PORT", "8888")
    monkeypatch.setenv("LANGCHAIN_ROOT_DIR", place.files)
    with AgentSandboxBackend.from_env() as backend:
        assert backend.execute("pwd").output == f"{place.files}\n"
    monkeypatch.setenv("LANGCHAIN_API_URL", router_url())
    with AgentSandboxBackend.from_env() as backend:
        assert backend.execute("pwd").output == f"{place.files}\n"
