"""`langchain_k8s`, on a handle or on a local sandbox."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from deepagents.backends.protocol import ExecuteResponse
from k8s_agent_sandbox.models import (
    SandboxDirectConnectionConfig,
    SandboxdPodTunnelConnectionConfig,
    SandboxGatewayConnectionConfig,
    SandboxInClusterConnectionConfig,
    SandboxLocalTunnelConnectionConfig,
)

from handles import Client, Handle
from sandpod import KubernetesProvider
from sandpod.compat import langchain_k8s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sandpod import KubernetesProviderConfig

    LocalConfig = Callable[..., KubernetesProviderConfig]


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
