"""A replacement for `langchain-k8s`, versions 0.4 (`template_name`) and 0.7 (`warmpool_name`).

Example:
    >>> from sandpod.compat.langchain_k8s import KubernetesSandbox
    >>> with KubernetesSandbox(template_name="python-sandbox-template") as backend:  # doctest: +SKIP
    ...     backend.execute("echo hello")
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import logging
import posixpath
import uuid
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sandpod._deepagents import (
    EditResult,
    ExecuteOffloadResult,
    FileData,
    ReadResult,
    WriteResult,
    normalize_read_bounds,
)
from sandpod.compat import _claims, _connections
from sandpod.compat._handle_backend import HandleBackend
from sandpod.compat._owned import OwnedSandbox
from sandpod.compat._paths import Paths, SandboxdPaths
from sandpod.compat._prechecked import CHECKS, PrecheckedSandbox
from sandpod.compat._rooted import RootedSandbox
from sandpod.config import KubernetesProviderConfig
from sandpod.provider import KubernetesProvider

if TYPE_CHECKING:
    from sandpod._deepagents import DeleteResult, GlobResult, GrepResult, LsResult

__all__ = ["KubernetesSandbox", "SandboxdBackend", "create_kubernetes_sandbox", "__version__"]  # noqa: RUF022 - theirs

ChangeT = TypeVar("ChangeT", WriteResult, EditResult)
ResultT = TypeVar("ResultT", "EditResult", "DeleteResult", "LsResult", "GlobResult", "GrepResult")

logger = logging.getLogger("langchain_k8s.sandbox")

try:
    __version__ = version("sandpod")
except PackageNotFoundError:
    __version__ = "0"


class KubernetesSandbox(PrecheckedSandbox):
    """A sandbox of agent-sandbox: that of a handle, or its own, which the first call creates.

    `allow_prefixes` limits `write`, `edit` and `delete`; `virtual_mode` shows `root_dir` as `/` to all file operations.
    In an own sandbox, the kernel enforces both, so that neither links nor `..` escape.
    """

    def __init__(  # noqa: PLR0913 - the other package's
        self,
        *,
        sandbox: Any = None,
        template_name: str | None = None,
        namespace: str = "default",
        gateway_name: str | None = None,
        gateway_namespace: str = "default",
        api_url: str | None = None,
        server_port: int = 8888,
        reuse_sandbox: bool = True,
        max_output_size: int = 1_048_576,
        command_timeout: int = 300,
        allow_prefixes: list[str] | None = None,
        root_dir: str | None = None,
        virtual_mode: bool = False,
        skip_cleanup: bool = False,
        claim_name: str | None = None,
        labels: dict[str, str] | None = None,
        warmpool_name: str | None = None,
        enable_capture_offload: bool = False,
        connection_config: Any = None,
        shutdown_after_seconds: int | None = None,
        pod_labels: dict[str, str] | None = None,
        pod_annotations: dict[str, str] | None = None,
        volume_claim_templates: list[dict[str, Any]] | None = None,
        env: dict[str, str] | None = None,
        router_namespace: str = _connections.ROUTERS,
        guest_token_file: str | None = None,
    ) -> None:
        """Take a handle or the settings of a sandbox, without creating it.

        All parameters except the last are those of the other package. `guest_token_file` is a file with the token of
        the template's guests, for connections over the network.
        """
        if sandbox is not None and claim_name is not None:
            msg = "Cannot specify both 'sandbox' and 'claim_name'"
            raise ValueError(msg)
        if sandbox is None and template_name is None and warmpool_name is None and claim_name is None:
            msg = "Either 'sandbox' or 'template_name' must be provided"
            raise ValueError(msg)
        if connection_config is not None and (api_url is not None or gateway_name is not None):
            msg = "Cannot specify 'connection_config' together with 'api_url' or 'gateway_name'"
            raise ValueError(msg)
        self._policy = policy = _policy(allow_prefixes, root_dir, virtual_mode=virtual_mode)
        self.enable_capture_offload = enable_capture_offload
        self._skip_cleanup = skip_cleanup
        self._unstarted_id = str(uuid.uuid4())
        self._owned: OwnedSandbox | None = None
        self._handle = sandbox
        if sandbox is not None:
            held = HandleBackend(sandbox, command_timeout, max_output_size, policy, guest_token_file=guest_token_file)
            super().__init__(held, Paths(policy))
            return
        connection = _connections.fields(api_url, gateway_name, gateway_namespace, server_port, router_namespace)
        if connection_config is not None:
            connection = _connections.of_config(connection_config)
        config = KubernetesProviderConfig(
            mode="agent-sandbox",
            namespace=namespace,
            template_name=template_name,
            warm_pool_name=warmpool_name,
            default_exec_timeout=command_timeout,
            label_prefix="",
            ttl_seconds=shutdown_after_seconds,
            env=env or {},
            pod_labels=pod_labels or {},
            pod_annotations=pod_annotations or {},
            volume_claim_templates=volume_claim_templates or [],
            guest_token_file=guest_token_file,
            **connection,
        )
        only_adopts = template_name is None and warmpool_name is None
        self._owned = OwnedSandbox(
            make_provider(config, only_adopts=only_adopts),
            claim_name=claim_name,
            labels=labels,
            policy=policy,
            max_output_bytes=max_output_size,
            replace_lost=reuse_sandbox,
            only_adopts=only_adopts,
        )
        super().__init__(self._owned, Paths(policy))

    @property
    def id(self) -> str:
        """The name of the claim; before its creation, a random name."""
        if self._owned is None:
            return super().id
        return self._owned.claim_name or self._unstarted_id

    @property
    def claim_name(self) -> str | None:
        """The name of the claim, by which another process finds it; None before its creation."""
        return self._owned.claim_name if self._owned else super().id

    def start(self) -> None:
        """Create the sandbox now, if it does not exist."""
        if self._owned:
            self._owned.make()

    def stop(self) -> None:
        """Delete the sandbox, unless `skip_cleanup` is set; the connection of a handle is only closed."""
        try:
            if self._owned:
                self._owned.stop(delete=not self._skip_cleanup)
            elif close := getattr(self._handle, "close_connection", None):
                close()
        except Exception as error:  # noqa: BLE001 - cleanup is best-effort
            logger.warning("Error during sandbox cleanup: %s", error)

    def __enter__(self) -> Self:
        """Start the sandbox; the context stops it at its end."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the sandbox."""
        self.stop()

    def execute_with_offload(self, command: str, capture_path: str, **options: Any) -> ExecuteOffloadResult:
        """Run a command line; with `enable_capture_offload`, long output is stored in a file."""
        if not self.enable_capture_offload:
            response = self.execute(command, timeout=options.get("timeout"))
            return ExecuteOffloadResult(offloaded=False, response=response)
        return super().execute_with_offload(command, capture_path, **options)

    async def aexecute_with_offload(self, command: str, capture_path: str, **options: Any) -> ExecuteOffloadResult:
        """Run a command line, as `execute_with_offload` does."""
        if not self.enable_capture_offload:
            response = await self.aexecute(command, timeout=options.get("timeout"))
            return ExecuteOffloadResult(offloaded=False, response=response)
        return await super().aexecute_with_offload(command, capture_path, **options)

    def write(self, file_path: str, content: str) -> WriteResult:
        """Write a file within the allowed prefixes."""
        return self._warned("write", file_path, super().write(file_path, content))

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """Write a file, as `write` does."""
        return self._warned("write", file_path, await super().awrite(file_path, content))

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Edit a file within the allowed prefixes."""
        return self._warned("edit", file_path, super().edit(file_path, old_string, new_string, replace_all))

    async def aedit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Edit a file, as `edit` does."""
        return self._warned("edit", file_path, await super().aedit(file_path, old_string, new_string, replace_all))

    def _warned(self, operation: str, path: str, result: ChangeT) -> ChangeT:
        """Return the result, and log a warning about a permission error that the policy allows."""
        if result.error and "ermission" in result.error:
            logger.warning(
                "%s: container permission denied for path=%r (resolved=%r). The sandbox policy (allow_prefixes) "
                "permits this path, but the container's OS user cannot write to it. Make it writable in the "
                "SandboxTemplate.",
                operation,
                path,
                self._seen.real("download", path),
            )
        return result

    def glob(self, pattern: str, path: str | None = "/") -> GlobResult:
        """Find files by name."""
        return super().glob(pattern, path)

    async def aglob(self, pattern: str, path: str | None = "/") -> GlobResult:
        """Find files by name, as `glob` does."""
        return await super().aglob(pattern, path)


class SandboxdBackend(KubernetesSandbox):
    """A sandbox of a template that runs agent-sandbox's `sandboxd`.

    It shows the files below `sandboxd_root` by their real paths, and stores `/large_tool_results` there. The guest
    searches without reading whole files, so `grep_max_file_bytes` is only validated.
    """

    def __init__(  # noqa: PLR0913 - the other package's
        self,
        *,
        sandboxd_root: str = "/workspace",
        grep_max_file_bytes: int = 1_048_576,
        connection_config: Any = None,
        api_url: str | None = None,
        gateway_name: str | None = None,
        sandbox: Any = None,
        **kwargs: Any,
    ) -> None:
        """Take a handle or the settings of a sandbox, without creating it."""
        if api_url is not None or gateway_name is not None:
            msg = "SandboxdBackend cannot use api_url or gateway_name; the sandbox router cannot proxy gRPC"
            raise ValueError(msg)
        if grep_max_file_bytes < 0:
            msg = "grep_max_file_bytes must be greater than or equal to zero"
            raise ValueError(msg)
        if not posixpath.isabs(sandboxd_root):
            msg = f"sandboxd_root must be an absolute path, got {sandboxd_root!r}"
            raise ValueError(msg)
        if connection_config is not None and not hasattr(connection_config, "grpc_port"):
            msg = "SandboxdBackend requires a SandboxdPodTunnelConnectionConfig"
            raise ValueError(msg)
        is_sandboxd = getattr(getattr(sandbox, "connector", None), "is_sandboxd", None)
        if callable(is_sandboxd) and is_sandboxd() is False:
            msg = "SandboxdBackend handle must use the sandboxd runtime"
            raise ValueError(msg)
        super().__init__(sandbox=sandbox, connection_config=connection_config, **kwargs)
        self._seen: Paths = SandboxdPaths(self._policy, sandboxd_root)
        self._backend = RootedSandbox(self._target(), self._seen)

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read a page of a file, with the line break at its end."""
        refused: ReadResult | None = CHECKS["read"].refused(self._seen, {"file_path": file_path})
        if refused:
            return refused
        (file,) = self.download_files([file_path])
        if file.content is None:
            return ReadResult(error=file.error)
        return _page(file.content, offset, limit)

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read a file, as `read` does."""
        return await asyncio.to_thread(self.read, file_path, offset, limit)

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Edit a file within the allowed prefixes."""
        return _coded(super().edit(file_path, old_string, new_string, replace_all))

    async def aedit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Edit a file, as `edit` does."""
        return _coded(await super().aedit(file_path, old_string, new_string, replace_all))

    def delete(self, file_path: str) -> DeleteResult:
        """Delete a file, or a directory with its content."""
        return _coded(super().delete(file_path))

    async def adelete(self, file_path: str) -> DeleteResult:
        """Delete a file, as `delete` does."""
        return _coded(await super().adelete(file_path))

    def ls(self, path: str) -> LsResult:
        """List a directory."""
        return _coded(super().ls(path))

    async def als(self, path: str) -> LsResult:
        """List a directory, as `ls` does."""
        return _coded(await super().als(path))

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by name, by default below `sandboxd_root`."""
        return _coded(super().glob(pattern, path))

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by name, as `glob` does."""
        return _coded(await super().aglob(pattern, path))

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Find lines that contain a text, by default below `sandboxd_root`."""
        return _coded(super().grep(pattern, path, glob, max_count=max_count))

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Find lines, as `grep` does."""
        return _coded(await super().agrep(pattern, path, glob, max_count=max_count))


def create_kubernetes_sandbox(  # noqa: PLR0913 - the other package's
    *,
    client: Any,
    claim_name: str,
    template_name: str | None = None,
    namespace: str = "default",
    labels: dict[str, str] | None = None,
    sandbox_ready_timeout: int = 180,
    warmpool_name: str | None = None,
    pod_labels: dict[str, str] | None = None,
    pod_annotations: dict[str, str] | None = None,
    volume_claim_templates: list[dict[str, Any]] | None = None,
    shutdown_after_seconds: int | None = None,
    env: dict[str, str] | None = None,
    **kwargs: Any,
) -> KubernetesSandbox:
    """Find or create the claim with this name through a `SandboxClient`, and wrap its handle.

    Concurrent calls get the same claim. A claim created here that does not become ready is deleted.
    """
    handle = _claims.find(client, claim_name, namespace)
    if handle is None:
        if warmpool_name is None and template_name is None:
            msg = "Either 'template_name' or 'warmpool_name' must be provided"
            raise ValueError(msg)
        wanted = {
            "pod_labels": pod_labels,
            "pod_annotations": pod_annotations,
            "volume_claim_templates": volume_claim_templates,
            "shutdown_after_seconds": shutdown_after_seconds,
            "env": env,
        }
        handle = _claims.make(
            client,
            claim_name,
            warmpool_name or _claims.pool_of(client, str(template_name), namespace),
            namespace=namespace,
            labels=labels,
            sandbox_ready_timeout=sandbox_ready_timeout,
            **{name: value for name, value in wanted.items() if value is not None},
        )
    return KubernetesSandbox(sandbox=handle, namespace=namespace, **kwargs)


def make_provider(config: KubernetesProviderConfig, *, only_adopts: bool = False) -> KubernetesProvider:
    """Create the provider of an own sandbox, or of an existing claim."""
    return KubernetesProvider(config, only_adopts=only_adopts)


def _page(content: bytes, offset: int, limit: int) -> ReadResult:
    """Return a page of a text with its line breaks, or base64 of a binary file."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return ReadResult(file_data=FileData(content=base64.b64encode(content).decode(), encoding="base64"))
    offset, limit = normalize_read_bounds(offset, limit)
    lines = text.splitlines(keepends=True)
    if not text.strip():
        return ReadResult(file_data=FileData(content=text, encoding="utf-8"))
    if limit == 0:
        return ReadResult(file_data=FileData(content="", encoding="utf-8"), no_lines_requested=True)
    if offset >= len(lines):
        return ReadResult(error=f"Line offset {offset} exceeds file length ({len(lines)} lines)")
    end = min(offset + limit, len(lines))
    shown = "".join(lines[offset:end]).replace("\r\n", "\n").replace("\r", "\n")
    return ReadResult(
        file_data=FileData(content=shown, encoding="utf-8"),
        total_lines=len(lines),
        start_line=offset + 1,
        end_line=end,
        next_offset=end if end < len(lines) else None,
    )


def _coded(result: ResultT) -> ResultT:
    """Replace errors by the codes of `sandboxd`."""
    error = result.error or ""
    if error.endswith(("' not found", "path_not_found", "file_not_found")):
        return dataclasses.replace(result, error="file_not_found")
    if error.endswith(("is not a regular file", "is_directory")):
        return dataclasses.replace(result, error="is_directory")
    return result


def _policy(allow_prefixes: list[str] | None, root_dir: str | None, *, virtual_mode: bool) -> dict[str, Any]:
    policy: dict[str, Any] = {"checked": ["write", "edit", "delete"]}
    if allow_prefixes is not None:
        policy["allow_prefixes"] = [prefix if prefix.endswith("/") else f"{prefix}/" for prefix in allow_prefixes]
    if virtual_mode:
        root = {"root_dir": root_dir or "/tmp", "traversal": "refuse", "accept_real_paths": True}  # noqa: S108
        policy |= root
    return policy
