"""The drop-in modules: what each promises, on a handle or on a sandbox of this machine."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType]
from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from k8s_agent_sandbox.models import (
    SandboxDirectConnectionConfig,
    SandboxdPodTunnelConnectionConfig,
    SandboxGatewayConnectionConfig,
    SandboxInClusterConnectionConfig,
    SandboxLocalTunnelConnectionConfig,
)

from handles import Client, Handle
from sandpod import KubernetesProvider, KubernetesProviderConfig
from sandpod.compat import (
    langchain_agent_sandbox,
    langchain_k8s,
    langchain_kubernetes,
    langchain_kubernetes_agent_sandbox,
)
from scripted import calls, execute, script, tool_results

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    LocalConfig = Callable[..., KubernetesProviderConfig]


@pytest.fixture
def handle(tmp_path: Path) -> Handle:
    return Handle(tmp_path)


def deep_agent(model: Any, backend: Any) -> Any:
    return create_deep_agent(model, backend=backend)  # pyright: ignore[reportUnknownVariableType]


# A handle's own methods: langchain-kubernetes-agent-sandbox, and the handle mode of langchain-k8s.


def test_a_handles_commands_run_in_a_shell_with_both_outputs_in_order(handle: Handle) -> None:
    backend = langchain_kubernetes_agent_sandbox.KubernetesAgentSandbox(sandbox=handle)
    assert (backend.id, backend.sandbox, backend.default_timeout) == ("sandbox-1", handle, 300)
    done = backend.execute("echo one | tr a-z A-Z; echo two >&2; echo three; exit 3")
    assert done == ExecuteResponse(output="ONE\ntwo\nthree\n", exit_code=3)
    assert backend.execute("true", timeout=7).exit_code == 0
    assert backend.execute("true", timeout=0).exit_code == 0
    assert handle.commands.asked[:2] == [300, 7]
    assert handle.commands.asked[2] > 10**5


def test_a_handles_timeout_is_124_and_its_trouble_a_result(handle: Handle) -> None:
    backend = langchain_kubernetes_agent_sandbox.KubernetesAgentSandbox(sandbox=handle, timeout=1)
    assert langchain_kubernetes_agent_sandbox.COMMAND_TIMEOUT_EXIT_CODE == 124
    assert backend.execute("sleep 30") == ExecuteResponse(output="Command timed out after 1s", exit_code=124)
    handle.commands.trouble = RuntimeError("502 from the router")
    lost = backend.execute("true")
    assert lost.exit_code is None
    assert "502 from the router" in lost.output
    assert backend.upload_files([("/x", b"")])[0].error == "502 from the router"
    assert "502" in str(backend.download_files(["/x"])[0].error)


def test_a_handles_files_are_where_its_commands_see_them(handle: Handle, tmp_path: Path) -> None:
    backend = langchain_kubernetes_agent_sandbox.KubernetesAgentSandbox(sandbox=handle)
    path = f"{tmp_path}/a dir/$(touch pwned)'file"
    content = bytes(range(256))
    assert backend.upload_files([(path, content), ("relative", b""), (str(tmp_path), b"")]) == [
        FileUploadResponse(path=path),
        FileUploadResponse(path="relative", error="invalid_path"),
        FileUploadResponse(path=str(tmp_path), error="is_directory"),
    ]
    assert backend.download_files([path, f"{tmp_path}/none", "relative", str(tmp_path)]) == [
        FileDownloadResponse(path=path, content=content),
        FileDownloadResponse(path=f"{tmp_path}/none", error="file_not_found"),
        FileDownloadResponse(path="relative", error="invalid_path"),
        FileDownloadResponse(path=str(tmp_path), error="is_directory"),
    ]
    assert [found.name for found in tmp_path.iterdir()] == ["a dir"], "nothing is left on the way"


def test_a_handle_serves_a_whole_agent(handle: Handle, tmp_path: Path) -> None:
    backend = langchain_kubernetes_agent_sandbox.KubernetesAgentSandbox(sandbox=handle)
    turns = script(
        calls(("write_file", {"file_path": f"{tmp_path}/a.txt", "content": "one\n"})),
        calls(("edit_file", {"file_path": f"{tmp_path}/a.txt", "old_string": "one", "new_string": "two"})),
        execute("cat a.txt"),
        "done",
    )
    agent = deep_agent(turns, backend)
    assert tool_results(agent.invoke({"messages": ["go"]}))[-1].startswith("two\n")


# langchain-k8s


def test_langchain_k8s_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match=r"^Either 'sandbox' or 'template_name' must be provided$"):
        langchain_k8s.KubernetesSandbox()
    with pytest.raises(ValueError, match=r"^Cannot specify both 'sandbox' and 'claim_name'$"):
        langchain_k8s.KubernetesSandbox(sandbox=object(), claim_name="x")


@pytest.mark.parametrize(
    ("connection", "expected"),
    [
        (
            SandboxDirectConnectionConfig(
                api_url="https://router", server_port=1, extra_headers={"X-Team": "a"}, client_cert=("/c", "/k")
            ),
            {
                "connection_mode": "direct",
                "api_url": "https://router",
                "server_port": 1,
                "extra_headers": {"X-Team": "a"},
                "client_cert": "/c",
                "client_key": "/k",
            },
        ),
        (
            SandboxGatewayConnectionConfig(gateway_name="gateway", gateway_namespace="edge"),
            {"connection_mode": "gateway", "gateway_name": "gateway", "gateway_namespace": "edge"},
        ),
        (SandboxLocalTunnelConnectionConfig(router_namespace="routers"), {"router_namespace": "routers"}),
        (SandboxInClusterConnectionConfig(server_port=2), {"server_port": 2}),
    ],
)
def test_a_connection_of_the_sdk_is_understood(
    connection: Any, expected: dict[str, Any], on_this_machine: list[KubernetesProviderConfig]
) -> None:
    langchain_k8s.KubernetesSandbox(warmpool_name="pool", connection_config=connection)
    own = {"label_prefix": "", "warm_pool_name": "pool", "default_exec_timeout": 300}
    said = {name: value for name, value in on_this_machine[0].explicit().items() if name not in own}
    assert said == expected
    with pytest.raises(
        ValueError, match="Cannot specify 'connection_config' together with 'api_url' or 'gateway_name'"
    ):
        langchain_k8s.KubernetesSandbox(warmpool_name="pool", connection_config=connection, api_url="http://router")


def test_a_backend_for_sandboxd_takes_what_its_package_takes(on_this_machine: list[KubernetesProviderConfig]) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"api_url": "http://router"}, "cannot proxy gRPC"),
        ({"sandboxd_root": "workspace"}, "must be an absolute path, got 'workspace'"),
        ({"grep_max_file_bytes": -1}, "greater than or equal to zero"),
        ({"connection_config": SandboxInClusterConnectionConfig()}, "requires a SandboxdPodTunnelConnectionConfig"),
    ]
    for options, refusal in refused:
        with pytest.raises(ValueError, match=refusal):
            langchain_k8s.SandboxdBackend(warmpool_name="pool", **options)
    connection = SandboxdPodTunnelConnectionConfig()
    with langchain_k8s.SandboxdBackend(warmpool_name="pool", connection_config=connection) as backend:
        assert on_this_machine[0].warm_pool_name == "pool"
        assert backend.write("/workspace/a.txt", "one").error is None
        assert [entry["path"] for entry in backend.glob_info("*.txt", "/workspace")] == ["/workspace/a.txt"]


@pytest.mark.parametrize("enabled", [True, False])
async def test_long_output_is_kept_in_a_file_only_where_that_is_enabled(
    enabled: bool,  # noqa: FBT001 - a parameter
    on_this_machine: list[KubernetesProviderConfig],
) -> None:
    assert on_this_machine == []
    backend = langchain_k8s.KubernetesSandbox(template_name="python", enable_capture_offload=enabled)
    path = "/large_tool_results/1"
    done = await backend.aexecute_with_offload("seq 1000", path, max_inline_bytes=100)
    assert done.offloaded is enabled
    assert backend.execute_with_offload("seq 1000", path, max_inline_bytes=100).offloaded is enabled
    assert (backend.read(path).error is None) is enabled
    backend.stop()


def test_h2_trouble_while_stopping_is_logged(handle: Handle, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        msg = "no way back"
        raise OSError(msg)

    handle.close_connection = fail
    with langchain_k8s.KubernetesSandbox(sandbox=handle):
        pass
    assert [record.getMessage() for record in caplog.records] == ["Error during sandbox cleanup: no way back"]


def test_prefixes_bind_writes_and_edits_and_nothing_else(handle: Handle, tmp_path: Path) -> None:
    backend = langchain_k8s.KubernetesSandbox(sandbox=handle, allow_prefixes=[f"{tmp_path}/ok"])
    denied = f"Path '{tmp_path}/no' is not under any allowed prefix: ('{tmp_path}/ok/',)"
    assert backend.write(f"{tmp_path}/no", "x").error == denied
    assert backend.edit(f"{tmp_path}/no", "x", "y").error == denied
    assert backend.delete(f"{tmp_path}/no").error == denied
    assert backend.write(f"{tmp_path}/ok/../no", "x").error is not None
    assert backend.write(f"{tmp_path}/ok/file", "x").error is None
    assert backend.upload_files([(f"{tmp_path}/no", b"up")])[0].error is None
    assert backend.execute("cat no").output == "up"


def test_a_virtual_root_holds_all_file_operations(handle: Handle, tmp_path: Path) -> None:
    backend = langchain_k8s.KubernetesSandbox(sandbox=handle, virtual_mode=True, root_dir=str(tmp_path))
    assert backend.write("/sub/a.txt", "needle\n").path == "/sub/a.txt"
    assert (tmp_path / "sub" / "a.txt").read_text() == "needle\n"
    assert backend.read(f"{tmp_path}/sub/a.txt").error is None
    assert [entry["path"] for entry in backend.ls_info("/sub")] == ["/sub/a.txt"]
    assert [entry["path"] for entry in backend.glob_info("*.txt")] == ["/sub/a.txt"]
    assert [match["path"] for match in backend.grep("needle").matches or []] == ["/sub/a.txt"]
    for path in ("/../etc/passwd", "~/x"):
        assert backend.read(path).error == f"Path traversal not allowed: '{path}'"
        assert backend.upload_files([(f"/{path}", b"")])[0].error in {"invalid_path", None}
    assert backend.download_files(["/../etc/passwd"])[0].error == "invalid_path"
    assert backend.write("/a..b", "x").error is None


def test_a_handles_stop_only_disconnects_and_its_claim_is_its_id(handle: Handle) -> None:
    with langchain_k8s.KubernetesSandbox(sandbox=handle) as backend:
        assert (backend.id, backend.claim_name) == ("claim-1", "claim-1")
    assert handle.closed == 1
    assert backend.execute("echo still there").output == "still there\n"


def test_a_sandbox_by_name_is_found_or_made_once(tmp_path: Path) -> None:
    client = Client(tmp_path)
    for _ in range(2):
        backend = langchain_k8s.create_kubernetes_sandbox(
            client=client, claim_name="thread-1", template_name="python", labels={"thread": "1"}, command_timeout=9
        )
        assert backend.claim_name == "thread-1"
    ((source, options),) = client.made
    assert (source, options["claim_name"], options["labels"]) == ("python", "thread-1", {"thread": "1"})


def test_a_sandbox_of_its_own_is_made_by_need_and_ended_by_stop(
    on_this_machine: list[KubernetesProviderConfig],
) -> None:
    backend = langchain_k8s.KubernetesSandbox(
        template_name="python", namespace="agents", api_url="http://router", max_output_size=10, virtual_mode=True
    )
    (config,) = on_this_machine
    assert (config.mode, config.template_name, config.namespace) == ("agent-sandbox", "python", "agents")
    assert (config.connection_mode, config.api_url, config.default_exec_timeout) == ("direct", "http://router", 300)
    assert backend.claim_name is None
    assert len(backend.id) == 36
    assert backend.execute("echo 0123456789abc") == ExecuteResponse("0123456789", exit_code=0, truncated=True)
    assert backend.write("/a.txt", "x").error is None
    assert backend.execute("cat /tmp/a.txt").output == "x"
    assert backend.read("/../etc/passwd").error == "File '/../etc/passwd': Path traversal not allowed: '/../etc/passwd'"
    first = backend.claim_name
    assert backend.id == first
    backend.stop()
    backend.start()
    assert backend.claim_name != first
    backend.stop()
    backend.stop()


def test_a_sandbox_that_is_lost_is_replaced_for_the_next_call(
    on_this_machine: list[KubernetesProviderConfig], local_config: LocalConfig
) -> None:
    assert on_this_machine == []
    with langchain_k8s.KubernetesSandbox(template_name="python") as backend:
        KubernetesProvider(local_config()).delete(sandbox_id=backend.id)
        lost = backend.execute("touch /tmp/once")
        assert lost.exit_code is None
        assert "gone" in lost.output
        assert backend.execute("ls /tmp/once").exit_code != 0


async def test_the_same_without_blocking(on_this_machine: list[KubernetesProviderConfig]) -> None:
    assert on_this_machine == []
    backend = langchain_k8s.KubernetesSandbox(template_name="python", allow_prefixes=["/tmp"])  # noqa: S108
    denied = "Path '/workspace/x' is not under any allowed prefix: ('/tmp/',)"
    assert (await backend.awrite("/workspace/x", "")).error == denied
    assert (await backend.aexecute("touch /workspace/x")).exit_code == 0
    assert (await backend.awrite("/tmp/x", "needle")).error is None  # noqa: S108
    assert await backend.agrep_raw("needle", "/tmp") == [{"path": "/tmp/x", "line": 1, "text": "needle"}]  # noqa: S108
    backend.stop()


def test_who_may_write_where_is_said_in_the_log(
    on_this_machine: list[KubernetesProviderConfig], caplog: pytest.LogCaptureFixture
) -> None:
    assert on_this_machine == []
    with langchain_k8s.KubernetesSandbox(template_name="python") as backend, caplog.at_level(logging.WARNING):
        assert backend.write("/proc/version", "x").error is not None
    assert any("cannot write to it" in record.message for record in caplog.records)
    assert {record.name for record in caplog.records} == {"langchain_k8s.sandbox"}


def test_g4_the_log_says_where_a_path_really_is(
    on_this_machine: list[KubernetesProviderConfig], caplog: pytest.LogCaptureFixture
) -> None:
    assert on_this_machine == []
    rooted = langchain_k8s.KubernetesSandbox(template_name="python", virtual_mode=True, root_dir="/proc")
    with rooted as backend, caplog.at_level(logging.WARNING):
        assert backend.write("/version", "x").error is not None
    assert "path='/version' (resolved='/proc/version')" in caplog.text


# langchain-kubernetes


def test_langchain_kubernetes_has_the_older_names_beside_the_newer(local_config: LocalConfig) -> None:
    provider = langchain_kubernetes.KubernetesProvider(local_config())
    sandbox = provider.get_or_create(labels={"team": "search"})
    assert isinstance(sandbox, langchain_kubernetes.KubernetesSandbox)
    assert sandbox.write("/workspace/a.txt", "needle\n").error is None
    assert [entry["path"] for entry in sandbox.ls_info("/workspace")] == ["/workspace/a.txt"]
    assert [entry["path"] for entry in sandbox.glob_info("*.txt", "/workspace")] == ["/workspace/a.txt"]
    assert sandbox.grep_raw("needle", "/workspace") == [{"path": "/workspace/a.txt", "line": 1, "text": "needle"}]
    assert sandbox.grep_raw("needle", "/none") == "Error: Path '/none' not found"
    assert (sandbox.ls_info("/none"), sandbox.glob_info("*", "/none")) == ([], [])
    assert isinstance(provider.reconnect(sandbox.id), langchain_kubernetes.KubernetesSandbox)
    provider.delete(sandbox_id=sandbox.id)


# langchain-agent-sandbox


def test_files_are_seen_below_the_root_with_the_results_of_then(
    on_this_machine: list[KubernetesProviderConfig],
) -> None:
    with langchain_agent_sandbox.AgentSandboxBackend.from_template("python", namespace="agents") as backend:
        assert on_this_machine[0].template_name == "python"
        assert backend.write("/a.txt", "one\n" + "x" * 3000).error is None
        assert backend.write("/a.txt", "two").error == "File '/a.txt' already exists"
        assert backend.read("/a.txt") == "1: one\n2: " + "x" * 2000
        assert backend.read("/none") == "Error: File '/none' not found"
        assert [entry["path"] for entry in backend.ls_info("/")] == ["/a.txt"]
        assert backend.ls_info("/none") == []
        assert backend.grep_raw("one", "/none") == "Error: Path '/none' not found"
        assert backend.edit("/a.txt", "none", "x").error == "Error: String not found in file: 'none'"
        assert "escapes root_dir '/app'" in str(backend.read("/../etc/passwd"))
        assert backend.execute("cat /app/a.txt | head -1").output == "one\n"
        assert [done.error for done in backend.upload_files({"/b": b"1", "/../c": b""})] == [None, "policy_denied"]
    with pytest.raises(ValueError, match="root_dir must be an absolute path, got: app"):
        langchain_agent_sandbox.AgentSandboxBackend(object(), root_dir="app")


def test_a_client_is_wrapped_and_entered_only_if_it_is_managed(handle: Handle, tmp_path: Path) -> None:
    backend = langchain_agent_sandbox.AgentSandboxBackend(handle, root_dir=str(tmp_path))
    with backend:
        assert backend.write("/a.txt", "one").path == "/a.txt"
        assert backend.read("/a.txt") == "1: one"
    assert backend.id == "claim-1"
    assert handle.entered == []
    with langchain_agent_sandbox.AgentSandboxBackend(handle, manage_client=True):
        assert handle.entered == ["in"]
    assert handle.entered == ["in", "out"]
    handle.claim_name = None
    assert backend.id == "sandbox-1"


def test_c3_a_command_has_a_minute_unless_another_time_is_given(
    handle: Handle, on_this_machine: list[KubernetesProviderConfig]
) -> None:
    langchain_agent_sandbox.AgentSandboxBackend.from_template("python")
    langchain_agent_sandbox.AgentSandboxBackend.from_template("python", default_exec_timeout=5)
    assert [asked.default_exec_timeout for asked in on_this_machine] == [60, 5]
    langchain_agent_sandbox.AgentSandboxBackend(handle).execute("true")
    assert handle.commands.asked[-1] >= 60


def test_h8_a_backend_that_has_no_name_yet_is_called_agent_sandbox(
    handle: Handle, on_this_machine: list[KubernetesProviderConfig]
) -> None:
    handle.claim_name, handle.sandbox_id = None, ""
    assert langchain_agent_sandbox.AgentSandboxBackend(handle).id == "agent-sandbox"
    backend = langchain_agent_sandbox.AgentSandboxBackend.from_template("python")
    assert backend.id == "agent-sandbox"
    with backend:
        assert backend.id != "agent-sandbox", "its claim has a name"
    assert len(on_this_machine) == 1


async def test_the_factory_is_a_backend_and_makes_others_when_called(
    on_this_machine: list[KubernetesProviderConfig],
) -> None:
    factory = langchain_agent_sandbox.create_sandbox_backend_factory("python", root_dir="/workspace")
    turns = script(
        calls(("write_file", {"file_path": "/a.txt", "content": "one\n"})),
        calls(("read_file", {"file_path": "/a.txt"})),
        execute("cat /workspace/a.txt"),
        "done",
    )
    agent = deep_agent(turns, factory)
    results = tool_results(await agent.ainvoke({"messages": ["go"]}))
    assert "one" in results[1]
    assert results[2].startswith("one\n")
    async with factory(object()) as another:
        assert another.id != factory.id
    await factory.__aexit__()
    assert len(on_this_machine) == 2


def test_a_pool_is_named_and_the_variables_of_development_are_read(
    on_this_machine: list[KubernetesProviderConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    pooled = langchain_agent_sandbox.WarmPoolBackend.from_warmpool("python", "agents", "python-pool")
    assert pooled.get_adoption_info() == {"warmpool_name": "python-pool", "from_warmpool": True}
    assert on_this_machine[0].warm_pool_name == "python-pool"
    anyone = langchain_agent_sandbox.WarmPoolBackend.from_warmpool("python")
    assert anyone.get_adoption_info() == {"warmpool_name": None, "from_warmpool": False}

    monkeypatch.setenv("LANGCHAIN_SANDBOX_TEMPLATE", "from-env")
    monkeypatch.setenv("LANGCHAIN_API_URL", "http://router")
    monkeypatch.setenv("LANGCHAIN_SERVER_PORT", "9999")
    langchain_agent_sandbox.AgentSandboxBackend.from_env()
    config = on_this_machine[-1]
    assert (config.template_name, config.api_url, config.server_port) == ("from-env", "http://router", 9999)


def test_a_policy_goes_around_it(on_this_machine: list[KubernetesProviderConfig]) -> None:
    told: list[tuple[str, str, dict[str, Any]]] = []
    backend = langchain_agent_sandbox.AgentSandboxBackend.from_template("python")
    secured = langchain_agent_sandbox.SandboxPolicyWrapper(
        backend,
        deny_prefixes=["/etc"],
        deny_commands=["rm -rf"],
        audit_log=lambda operation, target, meta: told.append((operation, target, meta)),
    )
    assert len(on_this_machine) == 1
    with secured:
        assert secured.write("/etc/x", "y").error == "Policy denied: writes not allowed under '/etc/x'"
        assert secured.execute("rm -rf /").output == "Policy denied: command blocked by policy"
        assert secured.write("/ok", "y").error is None
    assert told == [("write", "/ok", {"size": 1})]
