"""The examples in the documentation of langchain-k8s 0.4, with a scripted model.

The import is that of the drop-in module. Claims are taken from pools now, which is the one line that the SDK's own
client changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType]
from k8s_agent_sandbox import SandboxClient  # pyright: ignore[reportPrivateImportUsage]
from k8s_agent_sandbox.models import SandboxGatewayConnectionConfig, SandboxLocalTunnelConnectionConfig

from objects import router_url
from sandpod.compat.langchain_k8s import KubernetesSandbox, create_kubernetes_sandbox
from scripted import calls, execute, script, tool_results
from stage import GATEWAY, by_exec_and_router, by_gateway, in_places

if TYPE_CHECKING:
    from collections.abc import Iterator

    from langchain_core.runnables import RunnableConfig

    from scripted import ScriptedModel
    from stage import Place

pytestmark = pytest.mark.cluster

FIBONACCI = """
a, b = 0, 1
for _ in range(6):
    print(a)
    a, b = b, a + b
"""


def coder(place: Place) -> ScriptedModel:
    """A model that writes a program and runs it."""
    path = f"{place.files}/fibonacci.py"
    return script(
        calls(("write_file", {"file_path": path, "content": FIBONACCI})), execute(f"python3 {path}"), "It works."
    )


def run(model: ScriptedModel, backend: Any, said: str = "Print the Fibonacci sequence") -> list[str]:
    """Return the tool results of an agent."""
    agent: Any = create_deep_agent(  # pyright: ignore[reportUnknownVariableType]
        model=model, system_prompt="You are a Python coding assistant with sandbox access.", backend=backend
    )
    return tool_results(agent.invoke({"messages": [{"role": "user", "content": said}]}))


def config_based(place: Place, **options: Any) -> KubernetesSandbox:
    return KubernetesSandbox(template_name=place.template, namespace=place.namespace, **options)


# Quick start, and direct execution


@pytest.fixture
def handle(place: Place) -> Iterator[Any]:
    client: SandboxClient[Any] = SandboxClient(connection_config=SandboxLocalTunnelConnectionConfig())
    handle = client.create_sandbox(place.pool, namespace=place.namespace)
    yield handle
    client.delete_sandbox(handle.claim_name, place.namespace)


@by_exec_and_router
def test_an_agent_works_in_the_sandbox_of_a_handle(place: Place, handle: Any) -> None:
    backend = KubernetesSandbox(sandbox=handle)
    assert run(coder(place), backend)[1].startswith("0\n1\n1\n2\n3\n5\n")


@by_exec_and_router
def test_a_handle_runs_commands_and_transfers_files(place: Place, handle: Any) -> None:
    backend = KubernetesSandbox(sandbox=handle)
    response = backend.execute("echo 'Hello from K8s!'")
    assert (response.output, response.exit_code) == ("Hello from K8s!\n", 0)

    path = f"{place.files}/script.py"
    assert backend.upload_files([(path, b"print('hello')\n")])[0].error is None
    assert backend.download_files([path])[0].content == b"print('hello')\n"
    assert backend.execute(f"python3 {path}", timeout=600).output == "hello\n"
    elsewhere = backend.upload_files([("/workspace/script.py", b"print('hello')\n")])[0].error
    assert elsewhere == ("permission_denied" if place.is_stock else None), "the image's own directories decide"


@by_exec_and_router
def test_an_agent_works_in_a_sandbox_created_on_demand_and_deleted_by_stop(place: Place) -> None:
    backend = config_based(place)
    assert place.claims() == []
    assert run(coder(place), backend)[1].startswith("0\n1\n1\n2\n3\n5\n")
    assert place.claims() == [backend.claim_name]
    backend.stop()
    assert place.claims() == []
    with config_based(place) as backend:
        assert run(coder(place), backend)[1].startswith("0\n1\n1\n2\n3\n5\n")


# Connection modes


@by_gateway
@pytest.mark.parametrize("way", ["gateway", "api_url"])
def test_an_agent_works_through_a_gateway_and_the_routers_url(place: Place, way: str) -> None:
    named = {"gateway": {"gateway_name": GATEWAY, "gateway_namespace": place.namespace}, "api_url": {"api_url": None}}
    options: dict[str, Any] = named[way]
    if way == "api_url":
        options["api_url"] = router_url()
    with config_based(place, **options) as backend:
        assert run(coder(place), backend)[1].startswith("0\n1\n1\n2\n3\n5\n")


# Sandbox lifecycle


@by_gateway
async def test_each_thread_of_a_graph_factory_has_a_sandbox_that_is_found_again(place: Place) -> None:
    client: SandboxClient[Any] = SandboxClient(
        connection_config=SandboxGatewayConnectionConfig(gateway_name=GATEWAY, gateway_namespace=place.namespace)
    )

    async def make_agent(config: RunnableConfig, model: ScriptedModel) -> Any:
        thread_id = config.get("configurable", {})["thread_id"]
        backend = create_kubernetes_sandbox(
            client=client,
            claim_name=f"sandbox-{thread_id}",
            template_name=place.template,
            namespace=place.namespace,
            labels={"thread_id": thread_id},
        )
        return create_deep_agent(model=model, backend=backend)  # pyright: ignore[reportUnknownVariableType]

    async def turn(thread_id: str, command: str) -> str:
        agent = await make_agent({"configurable": {"thread_id": thread_id}}, script(execute(command), "done"))
        result = agent.invoke({"messages": [{"role": "user", "content": "Fetch weather data"}]})
        return tool_results(result)[0]

    await turn("user-session-abc", "echo 'print(1)' > weather.py")
    assert (await turn("user-session-abc", "cat weather.py")).startswith("print(1)\n")
    assert "No such file" in await turn("user-session-xyz", "cat weather.py")
    assert place.claims("--selector=thread_id=user-session-abc") == ["sandbox-user-session-abc"]
    for thread_id in ("abc", "xyz"):
        client.delete_sandbox(f"sandbox-user-session-{thread_id}", place.namespace)


@by_exec_and_router
def test_a_persistent_sandbox_keeps_its_files_and_is_replaced_when_its_pod_is_lost(place: Place) -> None:
    backend = config_based(place, reuse_sandbox=True)
    assert backend.execute("echo kept > note").exit_code == 0
    assert backend.execute("cat note").output == "kept\n"
    first = str(backend.claim_name)
    pod = place.kubectl("get", f"sandboxclaim/{first}", "--output=jsonpath={.status.sandbox.name}")
    place.kubectl("delete", f"sandboxclaim/{first}")
    place.kubectl("wait", "--for=delete", f"pod/{pod}", "--timeout=60s")
    lost = backend.execute("cat note")
    assert lost.exit_code is None, "it may have run"
    assert "No such file" in backend.execute("cat note").output
    assert backend.claim_name != first
    backend.stop()


@by_exec_and_router
def test_an_ephemeral_sandbox_is_fresh_with_each_start(place: Place) -> None:
    backend = config_based(place, reuse_sandbox=False)
    names: set[str | None] = set()
    for _ in range(2):
        backend.start()
        names.add(backend.claim_name)
        assert "No such file" in backend.execute("cat note; echo kept > note").output
        backend.stop()
    assert len(names) == 2


# Enterprise features


@by_exec_and_router
def test_a_path_policy_restricts_writes_and_edits(place: Place) -> None:
    with config_based(place, allow_prefixes=["/tmp/"]) as backend:  # noqa: S108 - the document's
        path = f"{place.files}/a.txt"
        denied = f"Path '{path}' is not under any allowed prefix: ('/tmp/',)"
        assert backend.write("/tmp/a.txt", "one").error is None  # noqa: S108
        assert backend.edit("/tmp/a.txt", "one", "two").error is None  # noqa: S108
        assert backend.write(path, "one").error == denied
        assert backend.edit(path, "one", "two").error == denied
        assert backend.upload_files([(path, b"up")])[0].error is None
        assert backend.execute(f"cat /tmp/a.txt {path}; echo bad > {path}; cat {path}").output == "twoupbad\n"


def use_virtual_root(backend: KubernetesSandbox) -> None:
    assert backend.write("/src/main.py", "print('main')\n").error is None
    assert [entry["path"] for entry in backend.glob_info("**/*.py")] == ["/src/main.py"]
    read = backend.read("/src/main.py")
    assert read.file_data is not None
    assert read.file_data["content"] == "print('main')"
    assert backend.upload_files([("/data/input.csv", b"a,b\n")])[0].error is None
    assert backend.execute("python3 /tmp/src/main.py; cat /tmp/data/input.csv").output == "main\na,b\n"
    traversal = "Path traversal not allowed: '../../etc/passwd'"
    assert backend.write("../../etc/passwd", "x").error == traversal
    assert backend.read("../../etc/passwd").error == traversal
    assert backend.delete("../../etc/passwd").error == traversal


@by_exec_and_router
@pytest.mark.parametrize("allow_prefixes", [None, ["/tmp/"]], ids=["all", "below-tmp"])  # noqa: S108
def test_a_virtual_root_resolves_all_paths(place: Place, allow_prefixes: list[str] | None) -> None:
    root = "/tmp"  # noqa: S108
    with config_based(place, virtual_mode=True, root_dir=root, allow_prefixes=allow_prefixes) as backend:
        use_virtual_root(backend)


@by_exec_and_router
def test_a_virtual_root_confines_handles_factories_and_adopted_claims(place: Place, handle: Any) -> None:
    client: SandboxClient[Any] = SandboxClient(connection_config=SandboxLocalTunnelConnectionConfig())
    name = handle.claim_name
    factory = create_kubernetes_sandbox(
        client=client, claim_name=name, template_name=place.template, namespace=place.namespace, virtual_mode=True
    )
    reconnected = config_based(place, claim_name=name, skip_cleanup=True, virtual_mode=True)
    for backend in (KubernetesSandbox(sandbox=handle, virtual_mode=True), factory, reconnected):
        use_virtual_root(backend)
        assert backend.execute("rm -r /tmp/src /tmp/data").exit_code == 0


@in_places("guest-by-exec", "guest-by-router")
def test_a_directory_that_the_template_makes_writable_is_a_root(place: Place) -> None:
    with config_based(place, virtual_mode=True, root_dir="/workspace", allow_prefixes=["/workspace/"]) as backend:
        assert backend.write("/src/main.py", "print(1)\n").error is None
        assert backend.execute("python3 /workspace/src/main.py").output == "1\n"


@by_exec_and_router
def test_a_sandbox_that_was_kept_is_found_by_its_claim_and_its_labels(place: Place) -> None:
    labels = {"session": "abc-123", "agent-id": "code-reviewer", "team": "platform"}
    backend = config_based(place, skip_cleanup=True, labels=labels)
    backend.start()
    kept = backend.claim_name
    assert backend.write(f"{place.files}/previous-work.py", "print(1)\n").error is None
    backend.stop()

    backend = config_based(place, claim_name=kept, skip_cleanup=True)
    backend.start()
    assert backend.execute(f"cat {place.files}/previous-work.py").output == "print(1)\n"
    backend.stop()
    assert place.claims("--selector=session=abc-123") == [kept]
    place.kubectl("delete", "sandboxclaims", "--selector=team=platform")
