"""Policies of sandboxes, wrappers and the audit of a provider: rows F1 and G1 to G8 of docs/acceptance.md."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

import pytest
from deepagents.backends.protocol import (
    DeleteResult,
    EditResult,
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
    ReadResult,
    SandboxBackendProtocol,
    WriteResult,
)

from sandpod import (
    KubernetesProvider,
    KubernetesProviderConfig,
    KubernetesSandbox,
    Sandbox,
    SandboxError,
    SandboxPolicyWrapper,
    verify_audit,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import SilentServer

BLOCKED = ExecuteResponse(output="Policy denied: command blocked by policy", exit_code=1)


class Backend(SandboxBackendProtocol):
    """A sandbox of another package, which records its calls."""

    def __init__(self) -> None:
        self.done: list[tuple[object, ...]] = []

    @property
    def id(self) -> str:
        return "theirs"

    def __enter__(self) -> Self:
        self.done.append(("enter",))
        return self

    def __exit__(self, *_: object) -> None:
        self.done.append(("exit",))

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        self.done.append(("execute", command, timeout))
        return ExecuteResponse(output="ran", exit_code=0)

    def write(self, file_path: str, content: str) -> WriteResult:
        self.done.append(("write", file_path, content))
        return WriteResult(path=file_path)

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        self.done.append(("edit", file_path, old_string, new_string, replace_all))
        return EditResult(path=file_path, occurrences=1)

    def delete(self, file_path: str) -> DeleteResult:
        self.done.append(("delete", file_path))
        return DeleteResult(path=file_path)

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        self.done.append(("read", file_path, offset, limit))
        return ReadResult(error="nothing there")

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        self.done.append(("upload", *[path for path, _ in files]))
        return [FileUploadResponse(path=path) for path, _ in files]


def denying(backend: Backend, **options: Any) -> SandboxPolicyWrapper:
    return SandboxPolicyWrapper(backend, deny_prefixes=["/etc", "/x/"], deny_commands=["rm -rf", "curl"], **options)


@pytest.mark.parametrize("path", ["/etc/passwd", "/etc", "/app/../etc/passwd", "//etc/./x", "/x/y"])
async def test_g6_writes_and_edits_below_a_denied_prefix_have_this_message(path: str) -> None:
    backend = Backend()
    wrapper = denying(backend)
    writes, edits = (f"Policy denied: {noun} not allowed under '{path}'" for noun in ("writes", "edits"))
    assert wrapper.write(path, "") == await wrapper.awrite(path, "") == WriteResult(error=writes, path=path)
    expected = EditResult(error=edits, path=path, occurrences=0)
    assert wrapper.edit(path, "a", "b") == await wrapper.aedit(path, "a", "b") == expected
    assert wrapper.delete(path).error == (await wrapper.adelete(path)).error == writes
    assert backend.done == []


async def test_g6_similar_prefixes_are_allowed_and_reads_are_not_checked() -> None:
    backend = Backend()
    wrapper = denying(backend)
    assert wrapper.write("/etcetera", "a").error is None
    assert (await wrapper.awrite("/app/etc", "a")).error is None
    wrapper.read("/etc/passwd", 1, 2)
    assert backend.done == [("write", "/etcetera", "a"), ("write", "/app/etc", "a"), ("read", "/etc/passwd", 1, 2)]


@pytest.mark.parametrize("command", ["rm -rf /", "rm  -rf /", "r\\m -r -f /", "true; /usr/bin/curl x", "echo 'rm -rf'"])
async def test_g6_a_denied_command_is_not_run(command: str) -> None:
    backend = Backend()
    assert denying(backend).execute(command) == await denying(backend).aexecute(command) == BLOCKED
    assert backend.done == []


async def test_g6_a_denied_upload_fails_and_the_others_keep_their_order() -> None:
    backend = Backend()
    files = [("/a", b""), ("/etc/b", b""), ("/c", b""), ("/x/d", b"")]
    expected = [
        FileUploadResponse(path="/a"),
        FileUploadResponse(path="/etc/b", error="policy_denied"),
        FileUploadResponse(path="/c"),
        FileUploadResponse(path="/x/d", error="policy_denied"),
    ]
    assert denying(backend).upload_files(files) == await denying(backend).aupload_files(files) == expected
    assert denying(backend).upload_files([("/etc/b", b"")])[0].error == "policy_denied"
    assert backend.done == [("upload", "/a", "/c")] * 2


async def test_f1_files_may_be_a_dict_and_have_outcomes_in_its_order() -> None:
    backend = Backend()
    files = {"/a": b"1", "/etc/b": b"2", "/c": b"3"}
    expected = [
        FileUploadResponse(path="/a"),
        FileUploadResponse(path="/etc/b", error="policy_denied"),
        FileUploadResponse(path="/c"),
    ]
    assert denying(backend).upload_files(files) == await denying(backend).aupload_files(files) == expected
    assert denying(backend).upload_files({}) == []
    assert backend.done == [("upload", "/a", "/c")] * 2


async def test_g7_the_audit_log_is_called_before_each_allowed_operation() -> None:
    backend = Backend()
    heard: list[tuple[str, str, dict[str, Any]]] = []

    def hear(operation: str, target: str, facts: dict[str, Any]) -> None:
        heard.append((operation, target, facts))

    wrapper = denying(backend, audit_log=hear)
    wrapper.write("/a", "1234")
    wrapper.edit("/a", "1", "2", replace_all=True)
    wrapper.execute("true", timeout=3)
    await wrapper.aupload_files([("/b", b"123"), ("/etc/c", b"")])
    wrapper.write("/etc/d", "")
    wrapper.execute("curl x")
    assert heard == [
        ("write", "/a", {"size": 4}),
        ("edit", "/a", {"replace_all": True}),
        ("execute", "true", {}),
        ("upload", "/b", {"size": 3}),
    ]
    assert ("execute", "true", 3) in backend.done


def failing(*_: object) -> None:
    msg = "disk full"
    raise OSError(msg)


async def test_g7_a_failing_log_is_logged_and_blocks_no_operation(caplog: pytest.LogCaptureFixture) -> None:
    backend = Backend()
    wrapper = denying(backend, audit_log=failing)
    with caplog.at_level(logging.WARNING):
        assert wrapper.write("/a", "").error is None
        assert (await wrapper.aexecute("true")).output == "ran"
    assert caplog.messages == ["Audit log callback failed (continuing): disk full"] * 2


async def test_g7_a_failing_strict_log_blocks_every_operation() -> None:
    backend = Backend()
    wrapper = denying(backend, audit_log=failing, strict_audit=True)
    stop = "Audit log callback failed, so nothing was done: disk full"
    assert wrapper.write("/a", "").error == (await wrapper.aedit("/a", "1", "2")).error == stop
    assert wrapper.execute("true") == ExecuteResponse(output=stop, exit_code=1)
    assert [response.error for response in wrapper.upload_files([("/a", b""), ("/b", b"")])] == [stop, stop]
    assert backend.done == []


async def test_g8_the_wrapper_is_entered_with_its_sandbox_and_has_its_id() -> None:
    backend = Backend()
    with denying(backend) as wrapper:
        assert wrapper.id == "theirs"
        assert backend.done == [("enter",)]
    async with denying(backend) as wrapper:
        assert isinstance(wrapper, SandboxBackendProtocol), "or the execute tool would not be offered"
    assert backend.done == [("enter",), ("exit",)] * 2


def test_an_invalid_policy_is_rejected() -> None:
    with pytest.raises(ValueError, match="'etc' is not an absolute path"):
        SandboxPolicyWrapper(Backend(), deny_prefixes=["etc"])
    with pytest.raises(ValueError, match="deny_scope to 'file_tools'"):
        KubernetesProvider(KubernetesProviderConfig(mode="raw", policy={"deny_prefixes": ["/etc"]}))
    with pytest.raises(ValueError, match="has 'alow', which is not one of its fields"):
        KubernetesProvider(KubernetesProviderConfig(mode="raw", policy={"alow": []}))


def test_an_audit_function_gets_a_providers_operations_on_a_python_thread(
    kubeconfig: Path, server: SilentServer
) -> None:
    heard: list[tuple[str, dict[str, Any]]] = []
    config = KubernetesProviderConfig(
        mode="raw",
        kubeconfig=str(kubeconfig),
        audit=lambda event: heard.append((threading.current_thread().name, event)),
        strict_audit=True,
    )
    server.refuse.set()
    with pytest.raises(SandboxError, match="you cannot do that"):
        KubernetesProvider(config).delete(sandbox_id="sp-x")
    (thread, intent) = heard[0]
    assert (thread, intent["phase"], intent["operation"], intent["sandbox"]) == (
        "sandpod-audit",
        "intent",
        "remove",
        "sp-x",
    )


def test_a_strict_audit_function_that_raises_blocks_the_operation(kubeconfig: Path, server: SilentServer) -> None:
    config = KubernetesProviderConfig(mode="raw", kubeconfig=str(kubeconfig), audit=failing, strict_audit=True)
    with pytest.raises(SandboxError, match=r"Nothing was done.*OSError: disk full"):
        KubernetesProvider(config).delete(sandbox_id="sp-x")
    assert not server.called.is_set()


def test_the_audit_is_flushed_before_the_interpreter_exits(kubeconfig: Path, server: SilentServer) -> None:
    server.refuse.set()
    script = f"""
from sandpod import KubernetesProvider, KubernetesProviderConfig, SandboxError
def heard(event): print(event["phase"], flush=True)
provider = KubernetesProvider(KubernetesProviderConfig(mode="raw", kubeconfig={str(kubeconfig)!r}, audit=heard))
try:
    provider.delete(sandbox_id="sp-x")
except SandboxError:
    pass
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["intent", "outcome"]
    assert not done.stderr


def test_the_audit_thread_ends_with_its_provider(kubeconfig: Path) -> None:
    def listeners() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "sandpod-audit"]

    before = listeners()
    provider = KubernetesProvider(KubernetesProviderConfig(mode="raw", kubeconfig=str(kubeconfig), audit=failing))
    (ours,) = [thread for thread in listeners() if thread not in before]
    del provider
    ours.join(10)
    assert not ours.is_alive()


def test_an_audit_may_be_a_file(kubeconfig: Path, server: SilentServer, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    config = KubernetesProviderConfig(mode="raw", kubeconfig=str(kubeconfig), audit=file, strict_audit=True)
    server.refuse.set()
    provider = KubernetesProvider(config)
    with pytest.raises(SandboxError):
        provider.delete(sandbox_id="sp-x")
    provider.flush_audit()
    line = json.loads(file.read_text().splitlines()[0])
    assert (line["event"]["operation"], len(line["hash"])) == ("remove", 64)
    lines = verify_audit(file)
    assert lines == len(file.read_text().splitlines())
    file.write_text(file.read_text().replace("sp-x", "sp-y", 1))
    with pytest.raises(SandboxError, match="line 1: it was changed"):
        verify_audit(file)
    with pytest.raises(ValueError, match="audit and audit_file"):
        KubernetesProviderConfig(mode="raw", audit=file, audit_file="x").explicit()


def holds_a_policy(config: Callable[..., KubernetesProviderConfig], **options: Any) -> None:
    heard: list[dict[str, Any]] = []
    provider = KubernetesProvider(config(audit=heard.append, **options))
    sandbox = provider.get_or_create(policy={"root_dir": "/app", "deny_commands": ["curl"]})
    try:
        assert sandbox.write("/a", "1").error is None
        assert sandbox.execute("cat /app/a").output == "1"
        blocked = ExecuteResponse(output=f"{BLOCKED.output} (rule 'curl')", exit_code=1)
        assert sandbox.execute("true && curl x") == blocked
        wrapper = SandboxPolicyWrapper(sandbox, deny_prefixes=["/app/secret"])
        wrapper.execute("mkdir /app/secret && ln -s secret /app/link")
        assert "policy" in str(wrapper.write("/link/x", "").error)
        assert wrapper.upload_files([("/link/x", b""), ("/b", b"")]) == [
            FileUploadResponse(path="/link/x", error="policy_denied"),
            FileUploadResponse(path="/b"),
        ]
        assert [entry["path"] for entry in sandbox.ls("/secret").entries or []] == []
    finally:
        provider.delete(sandbox_id=sandbox.id)
        provider.flush_audit()
    done = {"create", "write", "upload", "execute", "list", "remove"}
    assert done <= {event["operation"] for event in heard}
    uploads = [event for event in heard if (event["operation"], event["phase"]) == ("upload", "outcome")]
    assert {(event["targets"][0], event["decision"]) for event in uploads} == {("/link/x", "denied"), ("/b", "allowed")}


def test_a_policy_of_a_local_sandbox_applies_to_links(
    local_config: Callable[..., KubernetesProviderConfig],
) -> None:
    holds_a_policy(local_config)


@pytest.mark.cluster
def test_a_policy_of_a_pod_applies_to_links(raw_config: Callable[..., KubernetesProviderConfig]) -> None:
    holds_a_policy(raw_config, image="sandpod.test/busybox:1")


@pytest.fixture
def made(local_config: Callable[..., KubernetesProviderConfig]) -> Iterator[Callable[..., KubernetesSandbox]]:
    """Creates local sandboxes with a policy."""
    provider = KubernetesProvider(local_config())
    ids: list[str] = []

    def make(**policy: Any) -> KubernetesSandbox:
        sandbox = provider.get_or_create(policy=policy or None)
        ids.append(sandbox.id)
        return sandbox

    yield make
    for sandbox_id in ids:
        provider.delete(sandbox_id=sandbox_id)


def errors(sandbox: KubernetesSandbox, path: str) -> set[str | None]:
    """Return the error of each operation, except transfers, for a path."""
    return {
        sandbox.read(path).error,
        sandbox.write(path, "x").error,
        sandbox.edit(path, "a", "b").error,
        sandbox.delete(path).error,
        sandbox.ls(path).error,
        sandbox.glob("*", path).error,
        sandbox.grep("x", path).error,
    }


async def aerrors(sandbox: KubernetesSandbox, path: str) -> set[str | None]:
    return {
        (await sandbox.aread(path)).error,
        (await sandbox.awrite(path, "x")).error,
        (await sandbox.aedit(path, "a", "b")).error,
        (await sandbox.adelete(path)).error,
        (await sandbox.als(path)).error,
        (await sandbox.aglob("*", path)).error,
        (await sandbox.agrep("x", path)).error,
    }


async def escapes(sandbox: KubernetesSandbox, path: str, sentence: str) -> None:
    """Assert that every operation rejects the path, with the message or, for transfers, the code."""
    assert errors(sandbox, path) == await aerrors(sandbox, path) == {sentence}
    uploaded = [FileUploadResponse(path=path, error="invalid_path"), FileUploadResponse(path="/beside")]
    files = [(path, b"x"), ("/beside", b"x")]
    assert sandbox.upload_files(files) == await sandbox.aupload_files(files) == uploaded
    downloaded = [FileDownloadResponse(path=path, error="invalid_path")]
    assert sandbox.download_files([path]) == await sandbox.adownload_files([path]) == downloaded


@pytest.mark.parametrize("path", ["../../etc/passwd", "/a/../b", "~/x", ".."])
async def test_g2_every_operation_rejects_traversal_with_this_message(
    made: Callable[..., KubernetesSandbox], path: str
) -> None:
    sandbox = made(root_dir="/tmp", traversal="refuse", accept_real_paths=True)  # noqa: S108
    sentence = f"Path traversal not allowed: '{path}'"
    await escapes(sandbox, path, sentence)
    assert sandbox.glob(path).error == (await sandbox.aglob(path)).error == sentence


async def test_g5_every_operation_rejects_a_path_outside_the_root_with_this_message(
    made: Callable[..., KubernetesSandbox],
) -> None:
    sandbox = made(root_dir="/app")
    await escapes(sandbox, "/../etc/passwd", "Path '/../etc/passwd' escapes root_dir '/app'")
    sandbox.execute("ln -s /etc /app/link")
    assert [done.error for done in sandbox.upload_files([("/link/x", b"")])] == ["policy_denied"], "by the kernel"


async def test_g1_allowed_prefixes_restrict_writes_and_not_uploads(
    local_config: Callable[..., KubernetesProviderConfig],
) -> None:
    heard: list[dict[str, Any]] = []
    provider = KubernetesProvider(local_config(audit=heard.append))
    policy = {"allow_prefixes": ["/tmp/"], "checked": ["write", "edit", "delete"]}  # noqa: S108
    sandbox = provider.get_or_create(policy=policy)
    try:
        denied = "Path '/workspace/a' is not under any allowed prefix: ('/tmp/',)"
        files = [("/workspace/a", b"one")]
        assert sandbox.upload_files(files) == await sandbox.aupload_files(files) == [FileUploadResponse("/workspace/a")]
        assert sandbox.write("/workspace/a", "x").error == denied
        assert sandbox.edit("/workspace/a", "one", "two").error == denied
        assert sandbox.delete("/workspace/a").error == denied
        assert sandbox.download_files(["/workspace/a"])[0].content == b"one"
    finally:
        provider.delete(sandbox_id=sandbox.id)
        provider.flush_audit()
    of = [event["operation"] for event in heard if event["targets"] == ["/workspace/a"] and event["phase"] == "intent"]
    assert of == ["upload", "upload", "write", "edit", "delete", "download"]


async def test_a_policy_checks_reads_and_writes_of_a_plain_sandbox(
    local_config: Callable[..., KubernetesProviderConfig],
) -> None:
    policy: dict[str, Any] = {"allow_prefixes": ["/tmp"], "checked": ["read", "write"]}  # noqa: S108
    async with await Sandbox.acreate(local_config(), policy=policy) as sandbox:
        for call in (
            lambda: sandbox.write("/workspace/a", b"x"),
            lambda: sandbox.read("/workspace/a"),
        ):
            with pytest.raises(SandboxError, match="is not under any allowed prefix") as denied:
                call()
            assert denied.value.code == "policy"
        with pytest.raises(SandboxError, match="is not under any allowed prefix"):
            await sandbox.awrite("/workspace/a", "x")
        await sandbox.awrite("/tmp/a", bytes(range(256)))  # noqa: S108
        assert sandbox.read("/tmp/a") == await sandbox.aread("/tmp/a") == bytes(range(256))  # noqa: S108


def test_g3_prefixes_outside_the_root_reject_writes_and_no_uploads(
    made: Callable[..., KubernetesSandbox],
) -> None:
    sandbox = made(root_dir="/tmp", allow_prefixes=["/workspace/"], checked=["write", "edit"])  # noqa: S108
    assert sandbox.upload_files([("/a", b"one")])[0].error is None
    denied = "Path '/a' is not under any allowed prefix: ('/workspace/',)"
    assert sandbox.write("/a", "x").error == sandbox.edit("/a", "one", "two").error == denied
    assert sandbox.execute("cat /tmp/a; echo x > /workspace/x").output == "one"


async def test_g5_a_handle_is_narrowed_to_roots_within_each_other(made: Callable[..., KubernetesSandbox]) -> None:
    sandbox = made()
    app = sandbox.narrowed({"root_dir": "/app", "accept_real_paths": True})
    assert app.write("/src/a.txt", "needle\n").error is None
    assert app.read("/app/src/a.txt").error is None
    assert [match["path"] for match in app.grep("needle").matches or []] == ["/src/a.txt"]
    for named in ("/src", "/app/src"):
        src = app.narrowed({"root_dir": named})
        assert [entry["path"] for entry in (await src.als("/")).entries or []] == ["/a.txt"]
        assert src.download_files(["/a.txt"])[0].content == b"needle\n"
        assert src.execute("cat /app/src/a.txt").output == "needle\n", "commands see real paths"
        assert src.read("/../b").error == "Path '/../b' escapes root_dir '/app/src'"
    assert sandbox.execute("ls /app").output == "src\n"


def test_a_directory_is_transferred_below_the_root_of_a_narrowed_handle(
    made: Callable[..., KubernetesSandbox], tmp_path: Path
) -> None:
    sandbox = made()
    app = sandbox.narrowed({"root_dir": "/app"})
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "a").write_text("one")
    app.upload_directory(tmp_path / "from", "/dir")
    assert sandbox.execute("cat /app/dir/a").output == "one"
    app.download_directory("/dir", tmp_path / "to")
    assert (tmp_path / "to" / "a").read_text() == "one"
    with pytest.raises(SandboxError, match="escapes root_dir '/app'") as failed:
        app.upload_directory(tmp_path / "from", "/../tmp")
    assert failed.value.code == "path_escapes"
