"""Defects of the earlier packages, tested in the drop-in modules. Numbers are rows of docs/acceptance.md."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from deepagents.backends.protocol import SandboxBackendProtocol

from handles import Client, Handle
from sandpod import SandboxError
from sandpod.compat import (
    langchain_agent_sandbox,
    langchain_k8s,
    langchain_kubernetes,
    langchain_kubernetes_agent_sandbox,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import SilentServer
    from sandpod import KubernetesProviderConfig

    LocalConfig = Callable[..., KubernetesProviderConfig]


@pytest.fixture(scope="module")
def sandbox(local_config: LocalConfig) -> Iterator[langchain_kubernetes.KubernetesSandbox]:
    """A sandbox of langchain-kubernetes."""
    provider = langchain_kubernetes.KubernetesProvider(local_config())
    sandbox = provider.get_or_create()
    assert isinstance(sandbox, langchain_kubernetes.KubernetesSandbox)
    yield sandbox
    provider.delete(sandbox_id=sandbox.id)


@pytest.fixture
def k8s(on_this_machine: list[KubernetesProviderConfig]) -> Iterator[langchain_k8s.KubernetesSandbox]:
    """A sandbox of langchain-k8s."""
    assert on_this_machine == []
    with langchain_k8s.KubernetesSandbox(template_name="python", max_output_size=7700) as backend:
        yield backend


# langchain-kubernetes


def test_o1_an_upload_completes_and_a_written_file_exists(
    sandbox: langchain_kubernetes.KubernetesSandbox,
) -> None:
    assert sandbox.upload_files([("/workspace/o1/byte", b"x")])[0].error is None
    assert sandbox.write("/workspace/o1/text", "text\n").error is None
    assert sandbox.execute("cat /workspace/o1/byte /workspace/o1/text").output == "xtext\n"


def test_o2_a_path_is_never_interpreted_by_a_shell(sandbox: langchain_kubernetes.KubernetesSandbox) -> None:
    path = "/workspace/o2/x$(touch /workspace/pwned)`touch /workspace/pwned`"
    assert sandbox.upload_files([(path, b"data")])[0].error is None
    assert sandbox.download_files([path])[0].content == b"data"
    assert sandbox.execute("ls /workspace/pwned").exit_code != 0


def test_o3_a_download_is_the_whole_file_and_a_directory_is_an_error(
    sandbox: langchain_kubernetes.KubernetesSandbox,
) -> None:
    content = bytes(range(256)) * (10 << 12)
    assert sandbox.upload_files([("/workspace/o3/file", content)])[0].error is None
    assert sandbox.execute("ln -s file /workspace/o3/link").exit_code == 0
    paths = ["/workspace/o3/file", "/workspace/o3/link", "/workspace//o3/./../o3/file", "/workspace/o3"]
    found = sandbox.download_files(paths)
    assert [each.content == content for each in found] == [True, True, True, False]
    assert found[3].error == "is_directory"


def test_o5_parallel_calls_on_one_sandbox_do_not_disturb_each_other(
    sandbox: langchain_kubernetes.KubernetesSandbox,
) -> None:
    def both(number: int) -> tuple[str, str | None]:
        written = sandbox.write(f"/workspace/o5/{number}", f"{number}")
        return sandbox.execute(f"cat /workspace/o5/{number}").output, written.error

    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(both, range(64))) == [(f"{number}", None) for number in range(64)]


def test_o7_o15_errors_of_the_cluster_are_reported(server: SilentServer, kubeconfig: Path) -> None:
    config = langchain_kubernetes.KubernetesProviderConfig(mode="raw", kubeconfig=str(kubeconfig))
    provider = langchain_kubernetes.KubernetesProvider(config)
    server.refuse.set()
    for call in (lambda: provider.delete(sandbox_id="a"), provider.list, provider.stats, provider.cleanup):
        with pytest.raises(SandboxError, match="you cannot do that"):
            call()


def test_o14_a_timeout_is_a_result_and_kills_every_descendant(
    sandbox: langchain_kubernetes.KubernetesSandbox,
) -> None:
    late = sandbox.execute("echo before; (sleep 31415 &) ; sleep 31415", timeout=1)
    assert (late.exit_code, late.output) == (124, "before\nCommand timed out after 1s")
    assert sandbox.execute("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 3141[5]'").output == "0\n"


# langchain-k8s


def test_o22_a_timeout_deletes_no_sandbox_and_no_command_runs_twice(k8s: langchain_k8s.KubernetesSandbox) -> None:
    claim = k8s.claim_name
    late = k8s.execute("echo once >> /workspace/log; sleep 60", timeout=1)
    assert late.exit_code == 124
    assert k8s.claim_name == claim
    assert k8s.execute("cat /workspace/log").output == "once\n"


def test_o23_a_policy_applies_to_the_resolved_path(on_this_machine: list[KubernetesProviderConfig]) -> None:
    with langchain_k8s.KubernetesSandbox(
        template_name="python", virtual_mode=True, root_dir="/workspace", allow_prefixes=["/workspace/ok"]
    ) as backend:
        assert len(on_this_machine) == 1
        assert backend.execute("mkdir -p /workspace/ok && ln -s /etc /workspace/ok/link").exit_code == 0
        for path in ("/ok/../evil", "/okay", "/ok/link/evil"):
            assert backend.write(path, "x").error is not None, path
        assert backend.read("/ok/link/passwd").error is not None
        assert backend.upload_files([("/../evil", b"")])[0].error is not None
        assert backend.write("/ok/a..b", "needle\n").error is None
        assert [entry["path"] for entry in backend.glob_info("**/a*")] == ["/ok/a..b"]
        assert [match["path"] for match in backend.grep("needle").matches or []] == ["/ok/a..b"]
        assert {entry["path"].rstrip("/") for entry in backend.ls_info("/ok")} == {"/ok/a..b", "/ok/link"}
        assert not backend.glob("../../etc/*", "/").matches


def test_o24_spaces_and_asterisks_in_a_path_are_literal(k8s: langchain_k8s.KubernetesSandbox) -> None:
    path = "/workspace/a dir/* [x]/file name"
    assert k8s.upload_files([(path, b"data")])[0].error is None
    assert k8s.download_files([path])[0].content == b"data"
    assert k8s.execute("ls /workspace").output == "a dir\n"


def test_o25_after_stop_a_handles_calls_return_a_message_and_no_assertion(tmp_path: Path) -> None:
    handle = Handle(tmp_path)
    backend = langchain_k8s.KubernetesSandbox(sandbox=handle)
    backend.stop()
    handle.commands = handle.files = None  # pyright: ignore[reportAttributeAccessIssue] - as the SDK's are then
    assert "its connection was closed" in backend.execute("true").output
    assert "its connection was closed" in str(backend.upload_files([("/x", b"")])[0].error)


def test_o26_output_is_unchanged_and_truncated_between_characters(
    on_this_machine: list[KubernetesProviderConfig],
) -> None:
    assert on_this_machine == []
    with langchain_k8s.KubernetesSandbox(template_name="python", max_output_size=5) as backend:
        assert backend.execute("printf a; printf b >&2; printf c").output == "abc"
        cut = backend.execute("printf '\u00e9\u00e9\u00e9'")
        assert (cut.output, cut.truncated) == ("\u00e9\u00e9", True)


@pytest.mark.parametrize("size", [99_000, 790_000, 10 << 20])
def test_the_size_of_a_file_is_limited_neither_by_an_argument_nor_by_the_output(
    k8s: langchain_k8s.KubernetesSandbox, size: int
) -> None:
    content = b"x" * size
    assert k8s.upload_files([("/workspace/large", content)])[0].error is None
    assert k8s.download_files(["/workspace/large"])[0].content == content
    assert k8s.write("/workspace/text", content.decode()).error is None


async def test_many_long_commands_do_not_starve_other_calls(k8s: langchain_k8s.KubernetesSandbox) -> None:
    long = [asyncio.create_task(k8s.aexecute("sleep 60")) for _ in range(64)]
    assert (await asyncio.wait_for(k8s.aexecute("echo quick"), 30)).output == "quick\n"
    for task in long:
        task.cancel()
    await asyncio.gather(*long, return_exceptions=True)


def test_o28_a_denied_request_is_not_reported_as_a_missing_sandbox(tmp_path: Path) -> None:
    class ForbiddenError(Exception):
        status = 403

    class Refusing(Client):
        k8s_helper: Any = None

        def get_sandbox_claim(self, *_: str) -> None:
            raise ForbiddenError

    client = Refusing(tmp_path)
    client.k8s_helper = client
    with pytest.raises(ForbiddenError):
        langchain_k8s.create_kubernetes_sandbox(client=client, claim_name="x", warmpool_name="pool")
    assert client.made == []


# langchain-kubernetes-agent-sandbox


def test_o29_commands_use_a_shell_keep_stderr_and_see_written_files(tmp_path: Path) -> None:
    backend = langchain_kubernetes_agent_sandbox.KubernetesAgentSandbox(sandbox=Handle(tmp_path))
    assert backend.execute("echo hi | tr a-z A-Z; echo no >&2").output == "HI\nno\n"
    assert backend.upload_files([(f"{tmp_path}/sub/file", b"x")])[0].error is None
    assert backend.execute(f"cat {tmp_path}/sub/file").output == "x"


# langchain-agent-sandbox


def test_o30_the_wrapper_is_a_backend_that_order_and_spelling_do_not_bypass(
    on_this_machine: list[KubernetesProviderConfig],
) -> None:
    backend = langchain_agent_sandbox.AgentSandboxBackend.from_template("python", allow_absolute_paths=True)
    secured = langchain_agent_sandbox.SandboxPolicyWrapper(backend, deny_prefixes=["/etc"], deny_commands=["rm -rf"])
    assert isinstance(secured, SandboxBackendProtocol)
    assert len(on_this_machine) == 1
    with secured:
        for command in ("rm -rf /", "rm  -rf /", "r\\m -rf /", "true; 'rm' -rf /"):
            assert secured.execute(command).exit_code == 1, command
        files = [("/a", b"1"), ("/etc/b", b"2"), ("/c", b"3"), ("/x/../etc/d", b"4")]
        assert [(done.path, done.error) for done in secured.upload_files(files)] == [
            ("/a", None),
            ("/etc/b", "policy_denied"),
            ("/c", None),
            ("/x/../etc/d", "policy_denied"),
        ]
        assert secured.write("/appfoo", "x").error is None
        assert secured.execute("cat /app/appfoo").output == "x", "/appfoo is not in /app"
        assert secured.grep_raw("x", "/appfoo") == [{"path": "/appfoo", "line": 1, "text": "x"}]
