"""The examples in the documentation of langchain-kubernetes 0.4, with a scripted model.

The import is that of the drop-in module, and the names in the cluster are those of the place.
"""

from __future__ import annotations

import json
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import pytest
from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType]
from fastapi import FastAPI
from fastapi.testclient import TestClient
from langgraph.checkpoint.memory import MemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph_sdk import get_client

from objects import router_url
from pythons import programs_of
from sandpod.compat.langchain_kubernetes import (
    KubernetesProvider,
    KubernetesProviderConfig,
    KubernetesSandbox,
    KubernetesSandboxManager,
)
from scripted import ObedientModel, calls, execute, script, thread, tool_results
from serving import free_port, serving
from stage import GATEWAY, by_exec_and_router, by_gateway, by_router

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator
    from pathlib import Path

    from stage import Place

pytestmark = pytest.mark.cluster

AGENT = """
from sandpod.compat.langchain_kubernetes import KubernetesProviderConfig, KubernetesSandboxManager
from scripted import ObedientModel

manager = KubernetesSandboxManager(
    KubernetesProviderConfig(
        template_name={place.template!r},
        namespace={place.namespace!r},
        connection_mode="gateway",
        gateway_name={gateway!r},
        gateway_namespace={place.namespace!r},
        warm_pool_name={place.pool!r},
    ),
    ttl_idle_seconds=1800,
    default_labels={{"app": "my-agent"}},
)

graph = manager.create_agent(ObedientModel())
"""
"""The document's agent.py."""


class State(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    sandbox_id: str


def of_template(place: Place, **options: Any) -> KubernetesProviderConfig:
    return KubernetesProviderConfig(template_name=place.template, namespace=place.namespace, **options)


def of_gateway(place: Place, **options: Any) -> KubernetesProviderConfig:
    gateway: dict[str, Any] = {
        "connection_mode": "gateway",
        "gateway_name": GATEWAY,
        "gateway_namespace": place.namespace,
    }
    return of_template(place, **gateway, **options)


def use_once(provider: KubernetesProvider) -> None:
    """The quick start."""
    sandbox = provider.get_or_create()
    try:
        result = sandbox.execute("python3 -c 'print(2 + 2)'")
        assert (result.output, result.exit_code, result.truncated) == ("4\n", 0, False)
    finally:
        provider.delete(sandbox_id=sandbox.id)


# Quick start, configuration and connection modes


@by_exec_and_router
def test_the_quick_start_runs_a_command(place: Place) -> None:
    use_once(KubernetesProvider(of_template(place)))


@by_router
def test_the_configuration_with_every_field_works(place: Place) -> None:
    config = KubernetesProviderConfig(
        template_name=place.template,
        namespace=place.namespace,
        connection_mode="tunnel",
        gateway_name=None,
        gateway_namespace="default",
        api_url=None,
        server_port=8888,
        startup_timeout_seconds=120,
        default_exec_timeout=1800,
    )
    use_once(KubernetesProvider(config))


@by_gateway
def test_a_gateway_and_the_routers_url_are_connection_modes(place: Place) -> None:
    use_once(KubernetesProvider(of_gateway(place)))
    use_once(KubernetesProvider(of_template(place, connection_mode="direct", api_url=router_url())))


@by_exec_and_router
def test_a_sandbox_is_claimed_from_the_named_warm_pool(place: Place) -> None:
    provider = KubernetesProvider(of_template(place, warm_pool_name=place.pool))
    sandbox = provider.get_or_create()
    assert sandbox.execute("echo hello").output == "hello\n"
    claim = json.loads(place.kubectl("get", f"sandboxclaim/{sandbox.id}", "--output=json"))
    assert claim["spec"]["warmPoolRef"] == {"name": place.pool}
    assert provider.pool_status().target == 3
    provider.delete(sandbox_id=sandbox.id)


# Raw mode


@pytest.fixture
def raw(raw_config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The namespace and the image of plain Pods, with our RBAC objects."""
    config = raw_config()
    monkeypatch.setenv("KUBECONFIG", str(config.kubeconfig))
    return {"mode": "raw", "namespace": config.namespace, "image": "sandpod.test/python:1"}


def test_the_quick_start_of_raw_mode_runs_a_command(raw: dict[str, Any]) -> None:
    use_once(KubernetesProvider(KubernetesProviderConfig(**raw)))


def test_the_configuration_of_raw_mode_with_every_field_works(raw: dict[str, Any]) -> None:
    config = KubernetesProviderConfig(
        **raw,
        image_pull_policy="IfNotPresent",
        image_pull_secrets=[],
        workdir="/workspace",
        command=["sleep", "infinity"],
        env={"MY_VAR": "value"},
        cpu_request="100m",
        cpu_limit="1000m",
        memory_request="256Mi",
        memory_limit="1Gi",
        ephemeral_storage_limit="5Gi",
        block_network=True,
        run_as_user=1000,
        run_as_group=1000,
        seccomp_profile="RuntimeDefault",
        namespace_per_sandbox=False,
        service_account=None,
        node_selector={},
        tolerations=[],
        volumes=[],
        volume_mounts=[],
        init_containers=[],
        pod_template_overrides=None,
        extra_annotations={},
        setup_script=None,
        startup_timeout_seconds=120,
        default_exec_timeout=1800,
    )
    provider = KubernetesProvider(config)
    use_once(provider)
    sandbox = provider.get_or_create()
    assert sandbox.execute("echo $MY_VAR in $PWD as $(id -u)").output == "value in /workspace as 1000\n"
    provider.delete(sandbox_id=sandbox.id)


# Usage with DeepAgents


def run_fibonacci(provider: KubernetesProvider, directory: str) -> None:
    sandbox = provider.get_or_create()
    path = f"{directory}/fibonacci.py"
    program = "a, b = 0, 1\nwhile a < 9:\n  print(a)\n  a, b = b, a + b\n"
    turns = script(
        calls(("write_file", {"file_path": path, "content": program})),
        execute(f"python3 {path}"),
        "It works.",
    )
    agent: Any = create_deep_agent(model=turns, backend=sandbox)  # pyright: ignore[reportUnknownVariableType]
    result = agent.invoke({"messages": [("user", "Write and run a Python script that prints the Fibonacci sequence")]})
    assert result["messages"][-1].content == "It works."
    assert tool_results(result)[1].startswith("0\n1\n1\n2\n3\n5\n8\n")
    provider.delete(sandbox_id=sandbox.id)


@by_exec_and_router
def test_an_agent_works_in_one_sandbox(place: Place) -> None:
    run_fibonacci(KubernetesProvider(of_template(place)), place.files)


def test_an_agent_works_in_one_plain_pod(raw: dict[str, Any]) -> None:
    run_fibonacci(KubernetesProvider(KubernetesProviderConfig(**raw)), "/workspace")


@by_gateway
def test_behind_fastapi_each_thread_has_a_sandbox_that_keeps_files_and_shell(place: Place) -> None:
    manager = KubernetesSandboxManager(of_gateway(place), ttl_idle_seconds=1800)
    agent: Any = None

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        nonlocal agent
        agent = manager.create_agent(ObedientModel(), checkpointer=MemorySaver())
        yield
        await manager.acleanup()

    app = FastAPI(lifespan=lifespan)

    @app.post("/chat/{thread_id}")
    async def chat(thread_id: str, message: str) -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        result = await agent.ainvoke(
            {"messages": [("user", message)]}, config={"configurable": {"thread_id": thread_id}}
        )
        return {"reply": result["messages"][-1].content}

    with TestClient(app) as client:

        def said(thread_id: str, command: str) -> str:
            return client.post(f"/chat/{thread_id}", params={"message": command}).json()["reply"]

        said("alice", "echo alice > /tmp/note && cd /tmp && export COLOUR=blue")
        assert said("alice", "cat note; echo $COLOUR in $PWD").startswith("alice\nblue in /tmp\n")
        assert "No such file" in said("bob", "cat /tmp/note")
        assert len(place.claims()) == 2
    assert len(place.claims()) == 2, "none has expired"
    manager.shutdown()


@pytest.mark.timeout(600)
@by_gateway
async def test_with_langgraph_dev_each_thread_has_a_sandbox(place: Place, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT.format(place=place, gateway=GATEWAY))
    settings = {"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}}
    (tmp_path / "langgraph.json").write_text(json.dumps(settings))
    port = free_port()
    command = [str(programs_of("langgraph-dev") / "langgraph"), "dev", "--no-browser", "--no-reload", f"--port={port}"]
    with serving(command, port, "/ok", tmp_path) as url:
        client: Any = get_client(url=url)
        thread_id = (await client.threads.create())["thread_id"]

        async def said(text: str) -> str:
            message = {"messages": [{"role": "user", "content": text}]}
            run = await client.runs.create(thread_id=thread_id, assistant_id="agent", input=message)
            state: Any = await client.runs.join(thread_id, run["run_id"])
            return str(state["messages"][-1]["content"])

        await said("echo petals > iris.csv")
        assert (await said("cat iris.csv")).startswith("petals\n")
        label = "langchain-kubernetes.bitkaio.com/app=my-agent"
        assert len(place.claims(f"--selector={label}")) == 1
    config = of_gateway(place, warm_pool_name=place.pool)
    KubernetesSandboxManager(config, default_labels={"app": "my-agent"}).shutdown(all=True)


@by_exec_and_router
def test_a_managers_agent_has_a_system_prompt_and_keeps_its_sandbox(place: Place) -> None:
    output = f"{place.files}/output"
    turns = script(
        execute(f"mkdir -p {output} && cd {output} && export KIND=csv"),
        calls(("write_file", {"file_path": f"{output}/a.csv", "content": "1,2\n"})),
        "saved",
        execute("cat a.$KIND; pwd"),
        "done",
    )
    with KubernetesSandboxManager(of_template(place)) as manager:
        graph = manager.create_agent(
            turns, checkpointer=MemorySaver(), system_prompt=f"Always save outputs to {output}/."
        )
        first = graph.invoke({"messages": [("user", "Save it")]}, thread("1"))
        result = graph.invoke({"messages": [("user", "Show it")]}, thread("1"))
        assert tool_results(result)[-1].startswith(f"1,2\n{output}\n")
        assert "Always save outputs" in str(turns.asked[0][0].content)
        assert result["sandbox_id"] == first["sandbox_id"]
        assert place.claims() == [first["sandbox_id"]]


# Sandbox lifecycle management


@by_exec_and_router
async def test_a_manager_creates_nodes_and_sandboxes_and_deletes_them(place: Place) -> None:
    manager = KubernetesSandboxManager(
        of_template(place),
        ttl_seconds=3600,
        ttl_idle_seconds=1800,
        default_labels={"project": "my-agent", "env": "prod"},
    )
    node: Any = manager.create_agent_node(script(execute("echo from the node > note"), "done"))
    builder: Any = StateGraph(State)
    graph = builder.add_node("agent", node).add_edge(START, "agent").compile()
    state = await graph.ainvoke({"messages": [("user", "go")]}, thread("1"))

    sandbox = await manager.get_or_reconnect(state["sandbox_id"])
    assert isinstance(sandbox, KubernetesSandbox)
    assert sandbox.id == state["sandbox_id"]
    assert (await sandbox.aexecute("cat note")).output == "from the node\n"
    assert place.claims("--selector=langchain-kubernetes.bitkaio.com/project=my-agent") == [sandbox.id]
    cleaned = await manager.acleanup()
    assert (cleaned.deleted, cleaned.kept) == ([], 1)
    await manager.ashutdown()
    assert place.claims() == []

    async with KubernetesSandboxManager(of_template(place)) as manager:
        sandbox = await manager.get_or_reconnect()
        assert isinstance(sandbox, KubernetesSandbox)
    assert place.claims() == []


@by_exec_and_router
async def test_a_provider_finds_lists_cleans_and_deletes(place: Place) -> None:
    provider = KubernetesProvider(of_template(place))
    sandbox = provider.get_or_create(
        sandbox_id="existing-id", labels={"customer": "acme"}, ttl_seconds=3600, ttl_idle_seconds=600
    )
    assert sandbox.id != "existing-id", "there was none of that id"
    assert sandbox.execute("echo kept > note").exit_code == 0
    assert provider.get_or_create(sandbox_id=sandbox.id).execute("cat note").output == "kept\n"

    for response in (provider.list(), provider.list(status="running"), provider.list(labels={"customer": "acme"})):
        assert [(each.id, each.status) for each in response.sandboxes] == [(sandbox.id, "running")]
        assert response.sandboxes[0].created_at is not None
        assert response.cursor is None
    for result in (provider.cleanup(), provider.cleanup(max_idle_seconds=300), await provider.acleanup()):
        assert (result.deleted, result.kept) == ([], 1)
    status = provider.pool_status()
    assert (status.active, status.target) == (1, 3)

    again = await provider.aget_or_create(sandbox_id=sandbox.id)
    assert again.id == sandbox.id
    assert [each.id for each in (await provider.alist()).sandboxes] == [sandbox.id]
    provider.delete(sandbox_id=sandbox.id)
    await provider.adelete(sandbox_id=sandbox.id)
    assert place.claims() == []


def test_raw_mode_keeps_the_requested_number_of_pods_ready(raw: dict[str, Any]) -> None:
    small: dict[str, Any] = {"cpu_request": "1m", "memory_request": "8Mi"}
    provider = KubernetesProvider(KubernetesProviderConfig(**raw, **small, warm_pool_size=3))
    use_once(provider)
    deadline = time.monotonic() + 100
    while provider.pool_status().available < 3:
        assert time.monotonic() < deadline, provider.pool_status()
        time.sleep(0.2)
    provider.close()
    provider.cleanup(max_idle_seconds=0)
    assert provider.list(status="warm").sandboxes == []


# Commands and files


@pytest.fixture
def sandbox(place: Place) -> Iterator[KubernetesSandbox]:
    provider = KubernetesProvider(of_template(place))
    sandbox = provider.get_or_create()
    assert isinstance(sandbox, KubernetesSandbox)
    yield sandbox
    provider.delete(sandbox_id=sandbox.id)


@by_exec_and_router
def test_a_command_has_output_and_its_own_timeout(sandbox: KubernetesSandbox) -> None:
    result = sandbox.execute("echo hello")
    assert (result.output, result.exit_code, result.truncated) == ("hello\n", 0, False)
    late = sandbox.execute("sleep 60", timeout=1)
    assert (late.output, late.exit_code) == ("Command timed out after 1s", 124)


@by_exec_and_router
def test_all_file_operations_work(sandbox: KubernetesSandbox) -> None:
    path = "/tmp/script.py"  # noqa: S108 - the document's
    assert sandbox.write(path, "print('hello')\n").error is None
    content = sandbox.read(path).file_data
    assert content is not None
    assert content["content"] == "print('hello')"
    assert sandbox.edit(path, "hello", "world").occurrences == 1
    assert sandbox.execute(f"python3 {path}").output == "world\n"
    assert path in [entry["path"] for entry in sandbox.ls_info("/tmp")]  # noqa: S108
    assert sandbox.write("/app/src/run.py", "def main():\n  pass\n").error is None
    assert "/app/src/run.py" in [entry["path"] for entry in sandbox.glob_info("**/*.py", path="/app")]
    hits = sandbox.grep_raw("def main", path="/app")
    assert {"path": "/app/src/run.py", "line": 1, "text": "def main():"} in list(hits)
    files = [("/app/data.csv", b"col1,col2\n1,2\n"), ("/app/config.json", b'{"key": "val"}')]
    assert [done.error for done in sandbox.upload_files(files)] == [None, None]
    responses = sandbox.download_files(["/app/config.json", "/app/output.txt"])
    assert [(done.content, done.error) for done in responses] == [(b'{"key": "val"}', None), (None, "file_not_found")]


@by_exec_and_router
async def test_a_provider_and_its_sandboxes_have_async_methods(place: Place) -> None:
    provider = KubernetesProvider(of_template(place))
    sandbox = await provider.aget_or_create()
    try:
        assert (await sandbox.aexecute("echo async")).output == "async\n"
    finally:
        await provider.adelete(sandbox_id=sandbox.id)


# Troubleshooting


@by_exec_and_router
def test_a_thread_continues_in_a_new_sandbox_after_an_expiry(place: Place) -> None:
    lines = [execute(command) for command in ("echo kept > note", "cat note", "echo new > note; cat note")]
    turns = script(*(said for line in lines for said in (line, "done")))
    with KubernetesSandboxManager(of_template(place), ttl_seconds=86400, ttl_idle_seconds=3600) as manager:
        agent = manager.create_agent(turns, checkpointer=MemorySaver())
        state = agent.invoke({"messages": ["go"]}, thread("1"))
        manager.provider.delete(sandbox_id=state["sandbox_id"])
        results = tool_results(agent.invoke({"messages": ["go"]}, thread("1")))
        assert "has been replaced" in results[-1]
        assert "No such file" in results[-1]
        results = tool_results(agent.invoke({"messages": ["go"]}, thread("1")))
        assert results[-1].startswith("new\n")
