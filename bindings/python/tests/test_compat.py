"""The drop-in modules, on a handle or on a local sandbox."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType]
from deepagents.backends.protocol import EditResult, ExecuteResponse, FileDownloadResponse, FileUploadResponse
from k8s_agent_sandbox.models import (
    SandboxDirectConnectionConfig,
    SandboxdPodTunnelConnectionConfig,
    SandboxGatewayConnectionConfig,
    SandboxInClusterConnectionConfig,
    SandboxLocalTunnelConnectionConfig,
)
from langchain.tools import ToolRuntime

from handles import Client, Handle
from sandpod import KubernetesProvider, KubernetesProviderConfig
from sandpod.compat import (
    langchain_agent_sandbox,
    langchain_k8s,
    langchain_kubernetes,
    langchain_kubernetes_agent_sandbox,
)
from scripted import ObedientModel, calls, execute, script, tool_results

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    LocalConfig = Callable[..., KubernetesProviderConfig]


@pytest.fixture
def handle(tmp_path: Path) -> Handle:
    return Handle(tmp_path)


def deep_agent(model: Any, backend: Any) -> Any:
    return create_deep_agent(model, backend=backend)  # pyright: ignore[reportUnknownVariableType]


# The methods of a handle: langchain-kubernetes-agent-sandbox, and the handle mode of langchain-k8s.


def test_a_handles_commands_run_in_a_shell_with_both_outputs_in_order(handle: Handle) -> None:
    backend = langchain_kubernetes_agent_sandbox.KubernetesAgentSandbox(sandbox=handle)
    assert (backend.id, backend.sandbox, backend.default_timeout) == ("sandbox-1", handle, 300)
    done = backend.execute("echo one | tr a-z A-Z; echo two >&2; echo three; exit 3")
    assert done == ExecuteResponse(output="ONE\ntwo\nthree\n", exit_code=3)
    assert backend.execute("true", timeout=7).exit_code == 0
    assert backend.execute("true", timeout=0).exit_code == 0
    assert handle.commands.asked[:2] == [300, 7]
    assert handle.commands.asked[2] > 10**5


def test_a_handles_timeout_is_124_and_its_errors_are_results(handle: Handle) -> None:
    backend = langchain_kubernetes_agent_sandbox.KubernetesAgentSandbox(sandbox=handle, timeout=1)
    assert langchain_kubernetes_agent_sandbox.COMMAND_TIMEOUT_EXIT_CODE == 124
    assert backend.execute("sleep 30") == ExecuteResponse(output="Command timed out after 1s", exit_code=124)
    handle.commands.trouble = RuntimeError("502 from the router")
    lost = backend.execute("true")
    assert lost.exit_code is None
    assert "502 from the router" in lost.output
    assert backend.upload_files([("/x", b"")])[0].error == "502 from the router"
    assert "502" in str(backend.download_files(["/x"])[0].error)


def test_commands_and_file_operations_of_a_handle_share_one_directory(handle: Handle, tmp_path: Path) -> None:
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
    assert [found.name for found in tmp_path.iterdir()] == ["a dir"], "no temporary file is left"


def test_an_agent_runs_on_a_handle(handle: Handle, tmp_path: Path) -> None:
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


def test_langchain_k8s_names_missing_arguments() -> None:
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
def test_a_connection_of_the_sdk_is_accepted(
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


def test_a_sandboxd_backend_accepts_the_arguments_of_its_package(
    on_this_machine: list[KubernetesProviderConfig],
) -> None:
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


@pytest.mark.parametrize("is_sandboxd", [True, False])
def test_a_sandboxd_backend_requires_a_handle_of_sandboxd(
    is_sandboxd: bool,  # noqa: FBT001 - a parameter
    handle: Handle,
) -> None:
    handle.connector = SimpleNamespace(is_sandboxd=lambda: is_sandboxd)
    if is_sandboxd:
        assert langchain_k8s.SandboxdBackend(sandbox=handle).claim_name == "claim-1"
        return
    with pytest.raises(ValueError, match=r"^SandboxdBackend handle must use the sandboxd runtime$"):
        langchain_k8s.SandboxdBackend(sandbox=handle)


@pytest.fixture(params=["owned", "driven"])
def sandboxd(
    request: pytest.FixtureRequest, handle: Handle, on_this_machine: list[KubernetesProviderConfig]
) -> Iterator[tuple[langchain_k8s.SandboxdBackend, str]]:
    """A backend for sandboxd and its root, on an owned sandbox or on a handle."""
    assert on_this_machine == []
    root = str(handle.place) if request.param == "driven" else "/workspace"
    source: dict[str, Any] = {"sandbox": handle} if request.param == "driven" else {"warmpool_name": "pool"}
    with langchain_k8s.SandboxdBackend(sandboxd_root=root, enable_capture_offload=True, **source) as backend:
        yield backend, root


async def test_a_page_of_sandboxd_ends_with_the_files_line_break(
    sandboxd: tuple[langchain_k8s.SandboxdBackend, str],
) -> None:
    backend, root = sandboxd
    path = f"{root}/src/a.py"
    assert backend.write(path, "alpha\nbeta\n").path == path
    whole = backend.read(path)
    assert whole.file_data is not None
    assert (whole.file_data["content"], whole.total_lines, whole.next_offset) == ("alpha\nbeta\n", 2, None)
    first = await backend.aread(path, 0, 1)
    assert first.file_data is not None
    assert (first.file_data["content"], first.next_offset) == ("alpha\n", 1)
    assert backend.read(path, 9).error == "Line offset 9 exceeds file length (2 lines)"
    assert backend.upload_files([(f"{root}/b", b"\xff\x00")])[0].error is None
    assert backend.read(f"{root}/b").file_data == {"content": "/wA=", "encoding": "base64"}


async def test_errors_of_sandboxd_are_codes(sandboxd: tuple[langchain_k8s.SandboxdBackend, str]) -> None:
    backend, root = sandboxd
    missing = f"{root}/none"
    assert backend.read(missing).error == (await backend.aread(missing)).error == "file_not_found"
    assert backend.edit(missing, "a", "b").error == (await backend.aedit(missing, "a", "b")).error == "file_not_found"
    assert backend.delete(missing).error == (await backend.adelete(missing)).error == "file_not_found"
    assert backend.ls(missing).error == (await backend.als(missing)).error == "file_not_found"
    assert backend.execute(f"mkdir {root}/dir").exit_code == 0
    assert backend.read(f"{root}/dir").error == "is_directory"


async def test_a_sandboxd_backend_accesses_only_its_root(sandboxd: tuple[langchain_k8s.SandboxdBackend, str]) -> None:
    backend, root = sandboxd
    outside = f"Path '/etc/passwd' is outside sandboxd root '{root}'"
    assert set(refusals(backend, "/etc/passwd")) == {outside}
    assert set(await arefusals(backend, f"{root}/../../../../../../etc/passwd")) == {outside}
    assert backend.upload_files([("/etc/passwd", b"")])[0].error == "invalid_path"
    assert backend.download_files(["/etc/passwd"])[0].error == "invalid_path"
    assert backend.write(f"{root}/a.txt", "needle\n").error is None
    assert [entry["path"] for entry in backend.glob("*.txt").matches or []] == [f"{root}/a.txt"]
    assert [match["path"] for match in (await backend.agrep("needle")).matches or []] == [f"{root}/a.txt"]


async def test_long_output_of_sandboxd_is_kept_below_its_root(
    sandboxd: tuple[langchain_k8s.SandboxdBackend, str],
) -> None:
    backend, root = sandboxd
    pointer = "/large_tool_results/call-1"
    assert (await backend.aexecute_with_offload("seq 1000", pointer, max_inline_bytes=100)).offloaded
    assert backend.execute_with_offload("seq 1000", pointer, max_inline_bytes=100).offloaded
    kept = backend.read(pointer, 998)
    assert kept.file_data is not None
    assert kept.file_data["content"] == "999\n1000\n"
    assert backend.execute(f"wc -l < {root}/large_tool_results/call-1").output.strip() == "1000"


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


async def test_long_output_of_a_driven_handle_is_stored_for_its_file_tools(handle: Handle) -> None:
    backend = langchain_k8s.KubernetesSandbox(
        sandbox=handle, enable_capture_offload=True, virtual_mode=True, root_dir=str(handle.place), max_output_size=2000
    )
    pointer = "/large_tool_results/call-1"
    assert backend.execute_with_offload("seq 1000", pointer, max_inline_bytes=100).offloaded
    assert (await backend.aexecute_with_offload("seq 1000", pointer, max_inline_bytes=100)).offloaded
    assert backend.read(pointer, 999).error is None
    assert (handle.place / "large_tool_results" / "call-1").read_text().splitlines()[-1] == "1000"
    short = backend.execute_with_offload("echo short", pointer, max_inline_bytes=100)
    assert (short.offloaded, short.response.output) == (False, "short\n")
    assert backend.execute_with_offload("seq 1000", "/../x", max_inline_bytes=100).response.truncated


def test_h2_errors_during_stop_are_logged(handle: Handle, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        msg = "no way back"
        raise OSError(msg)

    handle.close_connection = fail
    with langchain_k8s.KubernetesSandbox(sandbox=handle):
        pass
    assert [record.getMessage() for record in caplog.records] == ["Error during sandbox cleanup: no way back"]


def test_prefixes_limit_writes_and_edits_and_nothing_else(handle: Handle, tmp_path: Path) -> None:
    backend = langchain_k8s.KubernetesSandbox(sandbox=handle, allow_prefixes=[f"{tmp_path}/ok"])
    denied = f"Path '{tmp_path}/no' is not under any allowed prefix: ('{tmp_path}/ok/',)"
    assert backend.write(f"{tmp_path}/no", "x").error == denied
    assert backend.edit(f"{tmp_path}/no", "x", "y").error == denied
    assert backend.delete(f"{tmp_path}/no").error == denied
    assert backend.write(f"{tmp_path}/ok/../no", "x").error is not None
    assert backend.write(f"{tmp_path}/ok/file", "x").error is None
    assert backend.upload_files([(f"{tmp_path}/no", b"up")])[0].error is None
    assert backend.execute("cat no").output == "up"


TRAVERSALS = ("../../etc/passwd", "/../etc/passwd", "~/x", "/a/../../etc/passwd")


def refusals(backend: langchain_k8s.KubernetesSandbox, path: str) -> list[str | None]:
    """Return the error of each file operation for a path."""
    return [
        backend.read(path).error,
        backend.write(path, "x").error,
        backend.edit(path, "x", "y").error,
        backend.delete(path).error,
        backend.ls(path).error,
        backend.glob("*", path).error,
        backend.grep("x", path).error,
    ]


async def arefusals(backend: langchain_k8s.KubernetesSandbox, path: str) -> list[str | None]:
    return [
        (await backend.aread(path)).error,
        (await backend.awrite(path, "x")).error,
        (await backend.aedit(path, "x", "y")).error,
        (await backend.adelete(path)).error,
        (await backend.als(path)).error,
        (await backend.aglob("*", path)).error,
        (await backend.agrep("x", path)).error,
    ]


async def test_g1_g2_paths_are_rejected_by_their_text_without_a_sandbox(
    on_this_machine: list[KubernetesProviderConfig],
) -> None:
    backend = langchain_k8s.KubernetesSandbox(warmpool_name="pool", virtual_mode=True, allow_prefixes=["/tmp/ok"])  # noqa: S108
    assert set(refusals(backend, "/../x")) == set(await arefusals(backend, "/../x"))
    denied = "Path '/tmp/no' is not under any allowed prefix: ('/tmp/ok/',)"
    assert backend.write("/no", "x").error == (await backend.awrite("/no", "x")).error == denied
    assert len(on_this_machine) == 1
    assert backend.claim_name is None, "none was made"


@pytest.mark.parametrize("way", ["owned", "driven"])
async def test_g2_every_file_operation_rejects_traversal_with_the_same_message(
    way: str, handle: Handle, on_this_machine: list[KubernetesProviderConfig]
) -> None:
    assert on_this_machine == []
    options: dict[str, Any] = {"sandbox": handle} if way == "driven" else {"template_name": "python"}
    backend = langchain_k8s.KubernetesSandbox(virtual_mode=True, **options)
    for path in TRAVERSALS:
        said = {f"Path traversal not allowed: '{path}'"}
        assert set(refusals(backend, path)) == said
        assert set(await arefusals(backend, path)) == said
        assert backend.upload_files([(path, b"")])[0].error == "invalid_path"
        assert backend.download_files([path])[0].error == "invalid_path"
    assert backend.glob("../../etc/*").error == "Path traversal not allowed: '../../etc/*'"
    assert backend.upload_files([("relative.txt", b"x")])[0].error is None, "it is below the root"
    assert backend.execute("cat /tmp/relative.txt; rm /tmp/relative.txt").output == "x"
    backend.stop()


def test_g3_prefixes_outside_of_the_root_reject_changes_and_not_the_sandbox(
    handle: Handle, on_this_machine: list[KubernetesProviderConfig]
) -> None:
    assert on_this_machine == []
    sources: list[dict[str, Any]] = [{"sandbox": handle}, {"template_name": "python"}]
    for options in sources:
        backend = langchain_k8s.KubernetesSandbox(virtual_mode=True, allow_prefixes=["/elsewhere"], **options)
        denied = "is not under any allowed prefix: ('/elsewhere/',)"
        assert denied in str(backend.write("/a.txt", "x").error)
        assert denied in str(backend.delete("/a.txt").error)
        assert backend.read("/none.txt").error == "File '/none.txt': file_not_found"
        assert backend.execute("echo works").output == "works\n"
        backend.stop()


def test_a_virtual_root_confines_all_file_operations(handle: Handle, tmp_path: Path) -> None:
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


def test_stop_only_disconnects_a_handle_and_the_claim_is_its_id(handle: Handle) -> None:
    with langchain_k8s.KubernetesSandbox(sandbox=handle) as backend:
        assert (backend.id, backend.claim_name) == ("claim-1", "claim-1")
    assert handle.closed == 1
    assert backend.execute("echo still there").output == "still there\n"


def test_a_named_sandbox_is_found_or_created_once(tmp_path: Path) -> None:
    client = Client(tmp_path)
    for _ in range(2):
        backend = langchain_k8s.create_kubernetes_sandbox(
            client=client, claim_name="thread-1", template_name="python", labels={"thread": "1"}, command_timeout=9
        )
        assert backend.claim_name == "thread-1"
    ((source, options),) = client.made
    assert (source, options["claim_name"], options["labels"]) == ("python", "thread-1", {"thread": "1"})


def test_an_owned_sandbox_is_created_by_the_first_call_and_deleted_by_stop(
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
    assert backend.read("/../etc/passwd").error == "Path traversal not allowed: '/../etc/passwd'"
    first = backend.claim_name
    assert backend.id == first
    backend.stop()
    backend.start()
    assert backend.claim_name != first
    backend.stop()
    backend.stop()


def test_the_next_call_replaces_a_lost_sandbox(
    on_this_machine: list[KubernetesProviderConfig], local_config: LocalConfig
) -> None:
    assert on_this_machine == []
    with langchain_k8s.KubernetesSandbox(template_name="python") as backend:
        KubernetesProvider(local_config()).delete(sandbox_id=backend.id)
        lost = backend.execute("touch /tmp/once")
        assert lost.exit_code is None
        assert "gone" in lost.output
        assert backend.execute("ls /tmp/once").exit_code != 0


async def test_async_methods_apply_policies_and_create_a_sandbox(
    on_this_machine: list[KubernetesProviderConfig],
) -> None:
    assert on_this_machine == []
    backend = langchain_k8s.KubernetesSandbox(template_name="python", allow_prefixes=["/tmp"])  # noqa: S108
    denied = "Path '/workspace/x' is not under any allowed prefix: ('/tmp/',)"
    assert (await backend.awrite("/workspace/x", "")).error == denied
    assert (await backend.aexecute("touch /workspace/x")).exit_code == 0
    assert (await backend.awrite("/tmp/x", "needle")).error is None  # noqa: S108
    assert await backend.agrep_raw("needle", "/tmp") == [{"path": "/tmp/x", "line": 1, "text": "needle"}]  # noqa: S108
    backend.stop()


def test_permission_errors_that_the_policy_allows_are_logged(
    on_this_machine: list[KubernetesProviderConfig], caplog: pytest.LogCaptureFixture
) -> None:
    assert on_this_machine == []
    with langchain_k8s.KubernetesSandbox(template_name="python") as backend, caplog.at_level(logging.WARNING):
        assert backend.write("/proc/version", "x").error is not None
    assert any("cannot write to it" in record.message for record in caplog.records)
    assert {record.name for record in caplog.records} == {"langchain_k8s.sandbox"}


def test_g4_the_log_contains_the_resolved_path(
    on_this_machine: list[KubernetesProviderConfig], caplog: pytest.LogCaptureFixture
) -> None:
    assert on_this_machine == []
    rooted = langchain_k8s.KubernetesSandbox(template_name="python", virtual_mode=True, root_dir="/proc")
    with rooted as backend, caplog.at_level(logging.WARNING):
        assert backend.write("/version", "x").error is not None
    assert "path='/version' (resolved='/proc/version')" in caplog.text


# langchain-kubernetes


def test_langchain_kubernetes_also_has_the_older_names(local_config: LocalConfig) -> None:
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


def test_l5_a_managers_sandboxes_have_the_older_names(local_config: LocalConfig) -> None:
    with langchain_kubernetes.KubernetesSandboxManager(local_config()) as manager:
        sandbox = asyncio.run(manager.get_or_reconnect())
        assert isinstance(sandbox, langchain_kubernetes.KubernetesSandbox)
        assert sandbox.write("/workspace/a.txt", "needle\n").error is None
        assert sandbox.grep_raw("needle", "/workspace") == [{"path": "/workspace/a.txt", "line": 1, "text": "needle"}]
        narrowed = sandbox.narrowed({"deny_prefixes": ["/etc"], "deny_scope": "file_tools"})
        assert [entry["path"] for entry in narrowed.ls_info("/workspace")] == ["/workspace/a.txt"]

        backend = manager.backend()
        assert isinstance(backend, langchain_kubernetes.KubernetesSandbox)
        assert "no thread_id" in str(backend.grep_raw("needle", "/workspace"))
        seen: list[Any] = []

        def look() -> str:
            """Read the workspace."""
            seen.append(backend.glob_info("*.txt", "/workspace"))
            return "looked"

        turns = script(execute("echo > /workspace/b.txt"), calls(("look", {})), "done")
        manager.create_agent(turns, tools=[look]).invoke({"messages": ["go"]}, thread("1"))
        assert [entry["path"] for entry in seen[0]] == ["/workspace/b.txt"]


def test_c4_the_configuration_rejects_agent_sandbox_without_a_template() -> None:
    refusal = (
        "^template_name is required when mode='agent-sandbox'. Set KubernetesProviderConfig"
        r"\(template_name='my-template'\) or use mode='raw' for direct Pod management.$"
    )
    with pytest.raises(ValueError, match=refusal):
        langchain_kubernetes.KubernetesProviderConfig()
    with pytest.raises(ValueError, match=refusal):
        langchain_kubernetes.KubernetesProviderConfig(mode="agent-sandbox", warm_pool_name="pool")
    assert langchain_kubernetes.KubernetesProviderConfig(mode="raw").template_name is None


async def test_l7_a_missing_thread_id_is_a_runtime_error_as_in_the_older_package(local_config: LocalConfig) -> None:
    refusal = (
        "^KubernetesSandboxManager: no thread_id in LangGraph config. "
        r"Invoke with config=\{'configurable': \{'thread_id': '...'\}\}."
    )
    with langchain_kubernetes.KubernetesSandboxManager(local_config()) as manager:
        agent = manager.create_agent(script(execute("true"), "done"))
        with pytest.raises(RuntimeError, match=refusal):
            agent.invoke({"messages": ["go"]})
        with pytest.raises(RuntimeError, match=refusal):
            await manager.create_setup_node()({}, {})


# langchain-agent-sandbox


def test_files_are_shown_below_the_root_with_the_older_results(
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
        assert [done.error for done in backend.upload_files({"/b": b"1", "/../c": b""})] == [None, "invalid_path"]
        assert backend.download_files(["/../etc/passwd"])[0].error == "invalid_path"
    with pytest.raises(ValueError, match="root_dir must be an absolute path, got: app"):
        langchain_agent_sandbox.AgentSandboxBackend(object(), root_dir="app")


@pytest.fixture(params=["owned", "driven"])
def backend(
    request: pytest.FixtureRequest, handle: Handle, on_this_machine: list[KubernetesProviderConfig]
) -> Iterator[langchain_agent_sandbox.AgentSandboxBackend]:
    """A backend whose root does not exist yet, on an owned sandbox or on a handle."""
    assert on_this_machine == []
    if request.param == "driven":
        root_dir = str(handle.place / "not" / "yet")
        yield langchain_agent_sandbox.AgentSandboxBackend(handle, root_dir=root_dir)
        return
    with langchain_agent_sandbox.AgentSandboxBackend.from_template("python", root_dir="/app/not yet") as owned:
        yield owned


async def test_g5_commands_start_in_the_root_of_file_operations(
    backend: langchain_agent_sandbox.AgentSandboxBackend,
) -> None:
    assert backend.execute("pwd").output == f"{backend.root_dir}\n", "it is created if it is missing"
    assert (await backend.aexecute("pwd")).output == f"{backend.root_dir}\n"
    assert backend.ls_info("/") == [], "creating it leaves no files behind"
    assert backend.write("/hello.py", "print('hello')\n").error is None
    assert backend.execute("python3 hello.py").output == "hello\n"
    assert backend.execute("cd /; pwd").output == "/\n"
    assert backend.execute("exit 3").exit_code == 3


async def test_g5_the_first_command_creates_a_missing_root(
    on_this_machine: list[KubernetesProviderConfig],
) -> None:
    assert on_this_machine == []
    async with langchain_agent_sandbox.AgentSandboxBackend.from_template("python", root_dir="/app/new") as backend:
        assert (await backend.aexecute("pwd")).output == "/app/new\n"


def test_g5_a_path_that_starts_with_the_root_is_the_same_file(
    backend: langchain_agent_sandbox.AgentSandboxBackend,
) -> None:
    assert backend.write(f"{backend.root_dir}/a.txt", "one").error is None
    assert backend.read("/a.txt") == "1: one"
    assert backend.execute(f"cat '{backend.root_dir}/a.txt'").output == "one"


async def test_f5_a_failed_edit_reports_the_path_and_the_number_of_matches(
    backend: langchain_agent_sandbox.AgentSandboxBackend,
) -> None:
    assert backend.write("/a.txt", "alpha beta alpha\r\nalpha\r\n").error is None
    many = EditResult(
        error="Error: String 'alpha' appears multiple times. Use replace_all=True to replace all occurrences.",
        path="/a.txt",
        occurrences=3,
    )
    none = EditResult(error="Error: String not found in file: 'gamma'", path="/a.txt", occurrences=0)
    missing = EditResult(error="Error: File '/none' not found", path="/none", occurrences=0)
    assert backend.edit("/a.txt", "alpha", "x") == await backend.aedit("/a.txt", "alpha", "x") == many
    assert backend.edit("/a.txt", "gamma", "x") == await backend.aedit("/a.txt", "gamma", "x") == none
    assert backend.edit("/none", "a", "b") == await backend.aedit("/none", "a", "b") == missing
    assert backend.edit("/a.txt", "alpha", "x", replace_all=True) == EditResult(path="/a.txt", occurrences=3)
    assert (await backend.awrite("/a.txt", "")).path == backend.write("/a.txt", "").path == "/a.txt"


async def test_f5_a_page_after_the_end_and_an_empty_file_are_empty_texts(
    backend: langchain_agent_sandbox.AgentSandboxBackend,
) -> None:
    assert backend.upload_files({"/a.txt": b"one\ntwo\n", "/empty": b""})[0].error is None
    assert backend.read("/a.txt", 1) == "2: two"
    assert backend.read("/a.txt", 100) == await backend.aread("/a.txt", 100) == ""
    assert backend.read("/empty") == await backend.aread("/empty") == ""
    assert backend.read("/a.txt", 100).error is not None, "Deep Agents' file tool gets the error"


async def test_f1_a_policy_wrapper_accepts_uploads_as_a_dict(
    backend: langchain_agent_sandbox.AgentSandboxBackend,
) -> None:
    secured = langchain_agent_sandbox.SandboxPolicyWrapper(backend, deny_prefixes=["/etc"])
    files = {"/etc/shadow": b"bad", "/ok.txt": b"good"}
    for done in (
        secured.upload_files(files),
        await secured.aupload_files(files),
        secured.upload_files(list(files.items())),
    ):
        assert [(each.path, each.error) for each in done] == [("/etc/shadow", "policy_denied"), ("/ok.txt", None)]
    assert secured.read("/ok.txt") == "1: good"


def test_g6_a_denied_directory_is_denied_by_each_of_its_paths(
    backend: langchain_agent_sandbox.AgentSandboxBackend,
) -> None:
    root = backend.root_dir
    for prefix in ("/secret", f"{root}/secret"):
        secured = langchain_agent_sandbox.SandboxPolicyWrapper(backend, deny_prefixes=[prefix])
        for path in ("/secret/a", f"{root}/secret/a", f"{root}/x/../secret/a"):
            assert secured.write(path, "").error == f"Policy denied: writes not allowed under '{path}'"
        assert secured.write("/secrets", "").path == "/secrets"


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


def test_c3_the_default_timeout_of_commands_is_a_minute(
    handle: Handle, on_this_machine: list[KubernetesProviderConfig]
) -> None:
    langchain_agent_sandbox.AgentSandboxBackend.from_template("python")
    langchain_agent_sandbox.AgentSandboxBackend.from_template("python", default_exec_timeout=5)
    assert [asked.default_exec_timeout for asked in on_this_machine] == [60, 5]
    langchain_agent_sandbox.AgentSandboxBackend(handle).execute("true")
    assert handle.commands.asked[-1] >= 60


def test_h8_a_backend_without_a_claim_has_the_id_agent_sandbox(
    handle: Handle, on_this_machine: list[KubernetesProviderConfig]
) -> None:
    handle.claim_name, handle.sandbox_id = None, ""
    assert langchain_agent_sandbox.AgentSandboxBackend(handle).id == "agent-sandbox"
    backend = langchain_agent_sandbox.AgentSandboxBackend.from_template("python")
    assert backend.id == "agent-sandbox"
    with backend:
        assert backend.id != "agent-sandbox", "its claim has a name"
    assert len(on_this_machine) == 1


# create_sandbox_backend_factory


def thread(name: str) -> Any:
    return {"configurable": {"thread_id": name}}


def said(agent: Any, command: str, name: str) -> str:
    """Return the output of a command that an agent ran in a thread."""
    return tool_results(agent.invoke({"messages": [("user", command)]}, thread(name)))[-1]


def runtime_of(name: str | None) -> ToolRuntime[Any, Any]:
    """The argument of a factory in older versions of Deep Agents."""
    config: Any = thread(name) if name else {}
    state: dict[str, Any] = {}
    return ToolRuntime(
        state=state, context=None, config=config, stream_writer=lambda _: None, tool_call_id=None, store=None
    )


@pytest.fixture
def factory(on_this_machine: list[KubernetesProviderConfig]) -> Iterator[langchain_agent_sandbox.BackendFactory]:
    """A factory; its sandboxes are deleted at the end."""
    with langchain_agent_sandbox.create_sandbox_backend_factory("python", root_dir="/workspace") as factory:
        assert len(on_this_machine) == 1
        yield factory


def sandboxes_of(scope: str, local_config: LocalConfig) -> list[str]:
    return [info.id for info in KubernetesProvider(local_config()).list(labels={"scope": scope}).sandboxes]


def test_h11_a_factorys_threads_never_see_each_others_files(factory: langchain_agent_sandbox.BackendFactory) -> None:
    agent = deep_agent(ObedientModel(), factory)
    assert said(agent, "echo alice > note; cat note", "alice").startswith("alice\n")
    assert "No such file" in said(agent, "cat note", "bob")
    assert said(agent, "echo bob > note; cat note", "bob").startswith("bob\n")
    assert said(agent, "cat note", "alice").startswith("alice\n")


async def test_h11_a_factorys_file_tools_work_in_the_callers_thread(
    factory: langchain_agent_sandbox.BackendFactory,
) -> None:
    async def run(name: str) -> list[str]:
        turns = script(
            calls(("write_file", {"file_path": "/a.txt", "content": f"{name}\n"})),
            calls(("edit_file", {"file_path": "/a.txt", "old_string": name, "new_string": name.upper()})),
            calls(("read_file", {"file_path": "/a.txt"})),
            execute("cat a.txt /workspace/a.txt"),
            "done",
        )
        return tool_results(await deep_agent(turns, factory).ainvoke({"messages": ["go"]}, thread(name)))

    for name, results in zip(("a", "b"), await asyncio.gather(run("a"), run("b")), strict=True):
        assert name.upper() in results[2]
        assert results[3].startswith(f"{name.upper()}\n{name.upper()}\n")


async def test_h11_a_factory_rejects_calls_outside_of_a_thread(
    on_this_machine: list[KubernetesProviderConfig], local_config: LocalConfig
) -> None:
    assert on_this_machine == []
    factory = langchain_agent_sandbox.create_sandbox_backend_factory("python", scope="refused")
    refusal = "create_sandbox_backend_factory: no thread_id in LangGraph config. Invoke with config="
    assert factory.id == "agent-sandbox"
    for done in (factory.execute("true"), await factory.aexecute("true")):
        assert done.exit_code == 125
        assert done.output.startswith(refusal)
    assert refusal in factory.read("/a.txt")
    assert refusal in await factory.aread("/a.txt")
    assert refusal in str(factory.write("/a.txt", "").error)
    assert refusal in str(factory.ls("/").error)
    assert refusal in str(factory.glob("*").error)
    assert refusal in str(factory.upload_files({"/a.txt": b""})[0].error)
    state = deep_agent(ObedientModel(), factory).invoke({"messages": [("user", "true")]})
    assert refusal in tool_results(state)[0], "an agent's run goes on"
    assert factory(runtime_of(None)) is factory
    assert sandboxes_of("refused", local_config) == []


def test_h11_a_factory_called_with_a_runtime_is_its_threads_backend(
    factory: langchain_agent_sandbox.BackendFactory,
) -> None:
    alice, bob = factory(runtime_of("alice")), factory(runtime_of("bob"))
    assert isinstance(alice, langchain_agent_sandbox.AgentSandboxBackend)
    assert alice.write("/a.txt", "alice").error is None
    assert bob.read("/a.txt") == "Error: File '/a.txt' not found"
    assert factory(runtime_of("alice")).read("/a.txt") == "1: alice"
    assert alice.id == factory(runtime_of("alice")).id != bob.id
    with bob:
        assert bob.write("/a.txt", "bob").error is None
    assert bob.read("/a.txt") == "Error: File '/a.txt' not found", "leaving the context deletes a thread's sandbox"
    assert alice.read("/a.txt") == "1: alice", "and no other"


def test_h11_another_process_finds_a_threads_sandbox_and_another_scope_none(
    factory: langchain_agent_sandbox.BackendFactory,
) -> None:
    assert factory(runtime_of("alice")).write("/a.txt", "alice").error is None
    replica = langchain_agent_sandbox.create_sandbox_backend_factory("python", root_dir="/workspace")
    assert replica(runtime_of("alice")).read("/a.txt") == "1: alice"
    with langchain_agent_sandbox.create_sandbox_backend_factory(
        "python", root_dir="/workspace", scope="other"
    ) as other:
        assert other(runtime_of("alice")).read("/a.txt") == "Error: File '/a.txt' not found"
    with langchain_agent_sandbox.create_sandbox_backend_factory("other", root_dir="/workspace") as other:
        assert other(runtime_of("alice")).read("/a.txt") == "Error: File '/a.txt' not found"


async def test_h11_closing_a_factory_deletes_all_its_sandboxes(
    on_this_machine: list[KubernetesProviderConfig], local_config: LocalConfig
) -> None:
    assert on_this_machine == []
    with langchain_agent_sandbox.create_sandbox_backend_factory("python", scope="left") as factory:
        assert [factory(runtime_of(name)).execute("true").exit_code for name in "abc"] == [0, 0, 0]
        assert len(sandboxes_of("left", local_config)) == 3
    assert sandboxes_of("left", local_config) == []
    assert "was closed" in factory(runtime_of("a")).execute("true").output

    async with langchain_agent_sandbox.create_sandbox_backend_factory("python", scope="left") as factory:
        assert (await factory(runtime_of("a")).aexecute("true")).exit_code == 0
        assert len(sandboxes_of("left", local_config)) == 1
    assert sandboxes_of("left", local_config) == []


def test_a_pool_can_be_named_and_development_variables_are_read(
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


def test_a_policy_wraps_the_backend(on_this_machine: list[KubernetesProviderConfig]) -> None:
    recorded: list[tuple[str, str, dict[str, Any]]] = []
    backend = langchain_agent_sandbox.AgentSandboxBackend.from_template("python")
    secured = langchain_agent_sandbox.SandboxPolicyWrapper(
        backend,
        deny_prefixes=["/etc"],
        deny_commands=["rm -rf"],
        audit_log=lambda operation, target, meta: recorded.append((operation, target, meta)),
    )
    assert len(on_this_machine) == 1
    with secured:
        assert secured.write("/etc/x", "y").error == "Policy denied: writes not allowed under '/etc/x'"
        assert secured.execute("rm -rf /").output == "Policy denied: command blocked by policy"
        assert secured.write("/ok", "y").error is None
    assert recorded == [("write", "/ok", {"size": 1})]
