"""The names of `langchain-k8s`, of its 0.4 (`template_name`) and of its 0.7 (`warmpool_name`).

Example:
    >>> from sandpod.compat.langchain_k8s import KubernetesSandbox
    >>> with KubernetesSandbox(template_name="python-sandbox-template") as backend:  # doctest: +SKIP
    ...     backend.execute("echo hello")
"""

from __future__ import annotations

import logging
import uuid
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Self

from sandpod.compat._delegate import Delegate, Paths
from sandpod.compat._handle import HandleSandbox
from sandpod.compat._owned import OwnedSandbox
from sandpod.config import KubernetesProviderConfig
from sandpod.provider import KubernetesProvider

if TYPE_CHECKING:
    from deepagents.backends.protocol import EditResult, GlobResult, WriteResult

__all__ = ["KubernetesSandbox", "__version__", "create_kubernetes_sandbox"]

logger = logging.getLogger("langchain_k8s.sandbox")

try:
    __version__ = version("sandpod")
except PackageNotFoundError:
    __version__ = "0"


class KubernetesSandbox(Delegate):
    """A sandbox of agent-sandbox: one that a handle leads to, or one of its own, made with the first call.

    `allow_prefixes` binds `write`, `edit` and `delete`; `virtual_mode` shows `root_dir` as `/` to all file operations.
    Both are asked of the sandbox's kernel where the sandbox is our own, so that no link and no `..` leads out.
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
    ) -> None:
        """Take a handle, or what a sandbox is made of; nothing is made yet."""
        if sandbox is not None and claim_name is not None:
            msg = "Cannot specify both 'sandbox' and 'claim_name'"
            raise ValueError(msg)
        if sandbox is None and template_name is None and warmpool_name is None and claim_name is None:
            msg = "Either 'sandbox' or 'template_name' must be provided"
            raise ValueError(msg)
        policy = _policy(allow_prefixes, root_dir, virtual_mode=virtual_mode)
        self._reuse_sandbox = reuse_sandbox
        self._skip_cleanup = skip_cleanup
        self._unstarted_id = str(uuid.uuid4())
        self._owned: OwnedSandbox | None = None
        if sandbox is not None:
            super().__init__(HandleSandbox(sandbox, command_timeout, max_output_size), Paths(policy))
            return
        mode = "gateway" if gateway_name else "direct" if api_url else "tunnel"
        config = KubernetesProviderConfig(
            mode="agent-sandbox",
            namespace=namespace,
            template_name=template_name,
            warm_pool_name=warmpool_name,
            connection_mode=mode,
            gateway_name=gateway_name,
            gateway_namespace=gateway_namespace,
            api_url=api_url,
            server_port=server_port,
            default_exec_timeout=command_timeout,
        )
        self._owned = OwnedSandbox(
            make_provider(config),
            claim_name=claim_name,
            labels=labels,
            policy=policy,
            max_output_bytes=max_output_size,
        )
        super().__init__(self._owned, None)

    @property
    def id(self) -> str:
        """The claim's name; before there is one, a name of this object alone."""
        if self._owned is None:
            return super().id
        return self._owned.claim_name or self._unstarted_id

    @property
    def claim_name(self) -> str | None:
        """The claim's name, to be kept for another process; None before there is one."""
        return self._owned.claim_name if self._owned else super().id

    def start(self) -> None:
        """Make the sandbox now, if it isn't there."""
        if self._owned:
            self._owned.make()

    def stop(self) -> None:
        """Delete the sandbox, unless `skip_cleanup`; a handle's is only disconnected from."""
        try:
            if self._owned:
                self._owned.stop(delete=not self._skip_cleanup)
            elif isinstance(self._inner, HandleSandbox):
                close = getattr(self._inner.handle, "close_connection", None)
                _ = close and close()
        except Exception as error:  # noqa: BLE001 - it ends what may be gone already
            logger.warning("Error during sandbox cleanup: %s", error)

    def __enter__(self) -> Self:
        """Start, and stop in the end."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.stop()

    def write(self, file_path: str, content: str) -> WriteResult:
        """Write a file that the prefixes allow."""
        return _warned("write", file_path, super().write(file_path, content))

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """Write a file, as `write` does."""
        return _warned("write", file_path, await super().awrite(file_path, content))

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Edit a file that the prefixes allow."""
        return _warned("edit", file_path, super().edit(file_path, old_string, new_string, replace_all))

    async def aedit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Edit a file, as `edit` does."""
        return _warned("edit", file_path, await super().aedit(file_path, old_string, new_string, replace_all))

    def glob(self, pattern: str, path: str | None = "/") -> GlobResult:
        """Find files by name."""
        return super().glob(pattern, path)

    async def aglob(self, pattern: str, path: str | None = "/") -> GlobResult:
        """Find files by name, as `glob` does."""
        return await super().aglob(pattern, path)


def create_kubernetes_sandbox(  # noqa: PLR0913 - the other package's
    *,
    client: Any,
    claim_name: str,
    template_name: str | None = None,
    namespace: str = "default",
    labels: dict[str, str] | None = None,
    sandbox_ready_timeout: int = 180,
    warmpool_name: str | None = None,
    **kwargs: Any,
) -> KubernetesSandbox:
    """Find the claim of that name through a `SandboxClient`, or make it, and wrap its handle.

    Who makes it at the same moment gets the same one.
    """
    handle = _find(client, claim_name, namespace)
    if handle is None:
        source = warmpool_name or template_name
        if source is None:
            msg = "Either 'template_name' or 'warmpool_name' must be provided"
            raise ValueError(msg)
        handle = client.create_sandbox(
            source,
            namespace=namespace,
            sandbox_ready_timeout=sandbox_ready_timeout,
            labels=labels,
            claim_name=claim_name,
            adopt_existing=True,
        )
    return KubernetesSandbox(sandbox=handle, namespace=namespace, **kwargs)


def make_provider(config: KubernetesProviderConfig) -> KubernetesProvider:
    """Make the provider of a sandbox of its own."""
    return KubernetesProvider(config)


def _find(client: Any, claim_name: str, namespace: str) -> Any:
    """The handle of a claim that is there. Only its absence is an absence: other trouble is the caller's to see."""
    try:
        return client.get_sandbox(claim_name, namespace=namespace)
    except Exception as error:
        if "NotFound" in type(error).__name__:
            return None
        raise


def _policy(allow_prefixes: list[str] | None, root_dir: str | None, *, virtual_mode: bool) -> dict[str, Any]:
    policy: dict[str, Any] = {"checked": ["write", "edit", "delete"]}
    if allow_prefixes is not None:
        policy["allow_prefixes"] = [prefix if prefix.endswith("/") else f"{prefix}/" for prefix in allow_prefixes]
    if virtual_mode:
        root = {"root_dir": root_dir or "/tmp", "traversal": "refuse", "accept_real_paths": True}  # noqa: S108
        policy |= root
    return policy


def _warned(operation: str, path: str, result: Any) -> Any:
    """The result, after a word in the log about who may write where."""
    if result.error and "ermission" in result.error:
        logger.warning(
            "%s: container permission denied for path=%r (resolved=%r). The sandbox policy (allow_prefixes) permits "
            "this path, but the container's OS user cannot write to it. Make it writable in the SandboxTemplate.",
            operation,
            path,
            path,
        )
    return result
