"""Providers: they create, find and delete sandboxes."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from asyncio import to_thread
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import sandpod
from sandpod import _audit, _native
from sandpod._tracing import traced
from sandpod.info import CleanupResult, ProviderStats, WarmPoolStatus, page_of

if TYPE_CHECKING:
    from sandpod._deepagents import SandboxBackendProtocol
    from sandpod.config import KubernetesProviderConfig
    from sandpod.info import SandboxListResponse, Status
    from sandpod.sandbox import KubernetesSandbox

# On import, so that every provider has its logs forwarded.
_native.forward_logs()

PACKAGE_DIR = str(Path(__file__).parent)
"""The directory of the guest, whose programs are installed in sandboxes."""


class SandboxProvider(ABC):
    """Creates, finds and deletes sandboxes."""

    @abstractmethod
    def get_or_create(self, *, sandbox_id: str | None = None, **kwargs: Any) -> SandboxBackendProtocol:
        """Return the sandbox with this id, or create one."""

    @abstractmethod
    def delete(self, *, sandbox_id: str, **kwargs: Any) -> None:
        """Delete the sandbox with this id; a missing one is no error."""

    async def aget_or_create(self, *, sandbox_id: str | None = None, **kwargs: Any) -> SandboxBackendProtocol:
        """Find or create a sandbox, as `get_or_create` does."""
        return await to_thread(self.get_or_create, sandbox_id=sandbox_id, **kwargs)

    async def adelete(self, *, sandbox_id: str, **kwargs: Any) -> None:
        """Delete a sandbox, as `delete` does."""
        await to_thread(self.delete, sandbox_id=sandbox_id, **kwargs)


class KubernetesProvider(SandboxProvider):
    r"""Sandboxes on Kubernetes, or with `mode="local"` on this machine.

    The provider keeps no list of its sandboxes: store `sandbox.id` to find one again. The constructor does not connect
    to the cluster; calls do, and raise `SandboxError` when they fail.

    Example:
        >>> from sandpod import KubernetesProvider, KubernetesProviderConfig
        >>> provider = KubernetesProvider(KubernetesProviderConfig(mode="raw", namespace="agents"))
        >>> sandbox = provider.get_or_create()  # doctest: +SKIP
        >>> sandbox.execute("echo hello").output  # doctest: +SKIP
        'hello\n'
        >>> provider.delete(sandbox_id=sandbox.id)  # doctest: +SKIP
    """

    _sandbox_class: ClassVar[type[KubernetesSandbox] | None] = None
    """The class of the returned sandboxes; None: `sandpod.KubernetesSandbox`, imported with the first sandbox."""

    def __init__(self, config: KubernetesProviderConfig, *, only_adopts: bool = False) -> None:
        """Validate the configuration.

        With `only_adopts`, `template_name` is optional; without one, the provider can only adopt existing claims.
        """
        self._only_adopts = only_adopts
        self._settings = (config.mode, json.dumps(config.explicit()), PACKAGE_DIR)
        self._audit = config.audit if callable(config.audit) else None
        self._made = (os.getpid(), self._make())

    def get_or_create(
        self,
        *,
        sandbox_id: str | None = None,
        labels: dict[str, str] | None = None,
        ttl_seconds: int | None = None,
        ttl_idle_seconds: int | None = None,
        policy: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> KubernetesSandbox:
        """Return the sandbox with this id, or create one; a new sandbox has a new id.

        Labels and TTLs apply to a new sandbox; by default the TTLs of the configuration apply. A sandbox is deleted
        `ttl_seconds` after this call returns, or after `ttl_idle_seconds` without a call.
        """
        _reject(kwargs, "get_or_create")
        call = self.native().get_or_create(sandbox_id, labels or {}, ttl_seconds, ttl_idle_seconds, policy_text(policy))
        return self._sandbox(call.wait())

    async def aget_or_create(
        self,
        *,
        sandbox_id: str | None = None,
        labels: dict[str, str] | None = None,
        ttl_seconds: int | None = None,
        ttl_idle_seconds: int | None = None,
        policy: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> KubernetesSandbox:
        """Find or create a sandbox, as `get_or_create` does."""
        _reject(kwargs, "aget_or_create")
        call = self.native().get_or_create(sandbox_id, labels or {}, ttl_seconds, ttl_idle_seconds, policy_text(policy))
        return self._sandbox(await call)

    def reconnect(self, sandbox_id: str) -> KubernetesSandbox:
        """Return the sandbox with this id; raise `SandboxNotFoundError` if it does not exist."""
        return self._sandbox(self.native().reconnect(sandbox_id).wait())

    async def areconnect(self, sandbox_id: str) -> KubernetesSandbox:
        """Find a sandbox, as `reconnect` does."""
        return self._sandbox(await self.native().reconnect(sandbox_id))

    def adopt(self, claim_name: str) -> KubernetesSandbox:
        """Use the sandbox of an existing SandboxClaim in the configuration's namespace.

        The owner of the claim deletes it: the claim is not modified, `cleanup` ignores it, and `delete` rejects it.
        Agent-sandbox mode only.
        """
        return self._sandbox(self.native().adopt(claim_name).wait())

    async def aadopt(self, claim_name: str) -> KubernetesSandbox:
        """Use the sandbox of an existing claim, as `adopt` does."""
        return self._sandbox(await self.native().adopt(claim_name))

    def list(
        self,
        cursor: str | None = None,
        *,
        labels: dict[str, str] | None = None,
        status: Status | None = None,
        **kwargs: Any,
    ) -> SandboxListResponse:
        """List one page of the sandboxes with all `labels` and this status; pass its `cursor` for the next page."""
        _reject(kwargs, "list")
        return page_of(self.native().list(cursor, labels or {}, status).wait())

    async def alist(
        self,
        cursor: str | None = None,
        *,
        labels: dict[str, str] | None = None,
        status: Status | None = None,
        **kwargs: Any,
    ) -> SandboxListResponse:
        """List one page of sandboxes, as `list` does."""
        _reject(kwargs, "alist")
        return page_of(await self.native().list(cursor, labels or {}, status))

    def cleanup(self, max_idle_seconds: int | None = None) -> CleanupResult:
        """Delete expired sandboxes; `max_idle_seconds` replaces their own idle TTLs.

        A sandbox that was used within that time, or runs a command, is kept. Where the recorded last activity may be
        outdated, the cleanup queries the sandbox.
        """
        return CleanupResult(**self.native().cleanup(max_idle_seconds).wait())

    async def acleanup(self, max_idle_seconds: int | None = None) -> CleanupResult:
        """Delete sandboxes, as `cleanup` does."""
        return CleanupResult(**await self.native().cleanup(max_idle_seconds))

    def stats(self, idle_threshold_seconds: int = 300) -> ProviderStats:
        """Count the sandboxes; one without a call for `idle_threshold_seconds` is idle."""
        return ProviderStats(**self.native().stats(idle_threshold_seconds).wait())

    async def astats(self, idle_threshold_seconds: int = 300) -> ProviderStats:
        """Count the sandboxes, as `stats` does."""
        return ProviderStats(**await self.native().stats(idle_threshold_seconds))

    def pool_status(self) -> WarmPoolStatus:
        """Return the numbers of available and used Pods of the warm pool."""
        return WarmPoolStatus(**self.native().pool_status().wait())

    async def apool_status(self) -> WarmPoolStatus:
        """Return the status of the warm pool, as `pool_status` does."""
        return WarmPoolStatus(**await self.native().pool_status())

    def extend(self, sandbox_id: str, ttl_seconds: int) -> None:
        """Set the TTL of a sandbox to `ttl_seconds` from now, replacing the previous one."""
        self.native().extend(sandbox_id, ttl_seconds).wait()

    async def aextend(self, sandbox_id: str, ttl_seconds: int) -> None:
        """Extend the TTL of a sandbox, as `extend` does."""
        await self.native().extend(sandbox_id, ttl_seconds)

    def suspend(self, sandbox_id: str, *, force: bool = False) -> None:
        """Delete the Pod of a sandbox and keep its volumes until `resume`. Agent-sandbox mode only.

        `SandboxInfo.durable_dirs` lists the directories that are kept. If the workspace is not on a volume, this raises
        an error that names the lost directories, unless `force` is set. Calls on a suspended sandbox return an error.
        """
        self.native().suspend(sandbox_id, force=force).wait()

    async def asuspend(self, sandbox_id: str, *, force: bool = False) -> None:
        """Suspend a sandbox, as `suspend` does."""
        await self.native().suspend(sandbox_id, force=force)

    def resume(self, sandbox_id: str, *, policy: dict[str, Any] | None = None) -> KubernetesSandbox:
        """Create a new Pod for a suspended sandbox; another sandbox is returned unchanged.

        A policy given at creation ended with the old Pod; pass it again.
        """
        return self._sandbox(self.native().resume(sandbox_id, policy_text(policy)).wait())

    async def aresume(self, sandbox_id: str, *, policy: dict[str, Any] | None = None) -> KubernetesSandbox:
        """Resume a sandbox, as `resume` does."""
        return self._sandbox(await self.native().resume(sandbox_id, policy_text(policy)))

    def delete(self, *, sandbox_id: str, **kwargs: Any) -> None:
        """Delete the sandbox with this id and all its objects, and wait until they are gone."""
        _reject(kwargs, "delete")
        self.native().delete(sandbox_id).wait()

    async def adelete(self, *, sandbox_id: str, **kwargs: Any) -> None:
        """Delete a sandbox, as `delete` does."""
        _reject(kwargs, "adelete")
        await self.native().delete(sandbox_id)

    def close(self) -> None:
        """Stop refilling the warm pool; another process can take over. Sandboxes and warm Pods are kept."""
        self.native().close().wait()

    async def aclose(self) -> None:
        """Stop refilling the warm pool, as `close` does."""
        await self.native().close()

    def flush_audit(self) -> None:
        """Wait until the audit has recorded all completed operations, at most five seconds."""
        self.native().flush_audit().wait()

    async def aflush_audit(self) -> None:
        """Wait for the audit, as `flush_audit` does."""
        await self.native().flush_audit()

    def _sandbox(self, native: _native.Sandbox) -> KubernetesSandbox:
        return (self._sandbox_class or sandpod.KubernetesSandbox)(native)

    def _make(self) -> _native.Provider:
        if self._audit is None:
            return traced(_native.Provider(*self._settings, None, only_adopts=self._only_adopts))
        provider = _native.Provider(*self._settings, _audit.listen(self._audit), only_adopts=self._only_adopts)
        _audit.flush_at_exit(provider)
        return traced(provider)

    def native(self) -> _native.Provider:
        """Return the provider of this process; a forked child opens its own connections."""
        process, provider = self._made
        if process != os.getpid():
            provider = self._make()
            self._made = (os.getpid(), provider)
        return provider


def policy_text(policy: dict[str, Any] | None) -> str | None:
    """Serialize a policy for the native module."""
    return None if policy is None else json.dumps(policy)


def _reject(arguments: dict[str, Any], function: str) -> None:
    if arguments:
        msg = f"{function}() of this version of sandpod does not accept: {', '.join(sorted(arguments))}."
        raise ValueError(msg)
