"""Where sandboxes come from."""

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

# Now, so that whoever has a provider has its logs, too.
_native.forward_logs()

PACKAGE_DIR = str(Path(__file__).parent)
"""Where the guest lies, the programs that are sent into sandboxes."""


class SandboxProvider(ABC):
    """Makes sandboxes, finds them again and removes them."""

    @abstractmethod
    def get_or_create(self, *, sandbox_id: str | None = None, **kwargs: Any) -> SandboxBackendProtocol:
        """Find the sandbox of that id, or make one."""

    @abstractmethod
    def delete(self, *, sandbox_id: str, **kwargs: Any) -> None:
        """Remove the sandbox of that id; one that is gone already is no error."""

    async def aget_or_create(self, *, sandbox_id: str | None = None, **kwargs: Any) -> SandboxBackendProtocol:
        """Find or make a sandbox, as `get_or_create` does."""
        return await to_thread(self.get_or_create, sandbox_id=sandbox_id, **kwargs)

    async def adelete(self, *, sandbox_id: str, **kwargs: Any) -> None:
        """Remove a sandbox, as `delete` does."""
        await to_thread(self.delete, sandbox_id=sandbox_id, **kwargs)


class KubernetesProvider(SandboxProvider):
    r"""Sandboxes on Kubernetes, or with `mode="local"` on this machine.

    It keeps no list of them: keep `sandbox.id` to find yours again. Making a provider reaches no cluster; its calls do,
    and raise `SandboxError` with the reason when they fail.

    Example:
        >>> from sandpod import KubernetesProvider, KubernetesProviderConfig
        >>> provider = KubernetesProvider(KubernetesProviderConfig(mode="raw", namespace="agents"))
        >>> sandbox = provider.get_or_create()  # doctest: +SKIP
        >>> sandbox.execute("echo hello").output  # doctest: +SKIP
        'hello\n'
        >>> provider.delete(sandbox_id=sandbox.id)  # doctest: +SKIP
    """

    _sandbox_class: ClassVar[type[KubernetesSandbox] | None] = None
    """What it hands out; None: Deep Agents' own, which are loaded with the first one."""

    def __init__(self, config: KubernetesProviderConfig, *, only_adopts: bool = False) -> None:
        """Check the configuration; what can't be used is refused by name.

        A provider that `only_adopts` claims of others needs no `template_name`, and makes no sandboxes without one.
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
        """Find the sandbox of that id, or make one; its id differs from the one given if there was none.

        Labels and times are those of a new one; without times the configuration's count. It ends `ttl_seconds` after it
        was handed out, or when it was not used for `ttl_idle_seconds`.
        """
        _refuse(kwargs, "get_or_create")
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
        """Find or make a sandbox, as `get_or_create` does."""
        _refuse(kwargs, "aget_or_create")
        call = self.native().get_or_create(sandbox_id, labels or {}, ttl_seconds, ttl_idle_seconds, policy_text(policy))
        return self._sandbox(await call)

    def reconnect(self, sandbox_id: str) -> KubernetesSandbox:
        """Find the sandbox of that id; `SandboxNotFoundError` if it is gone."""
        return self._sandbox(self.native().reconnect(sandbox_id).wait())

    async def areconnect(self, sandbox_id: str) -> KubernetesSandbox:
        """Find a sandbox, as `reconnect` does."""
        return self._sandbox(await self.native().reconnect(sandbox_id))

    def adopt(self, claim_name: str) -> KubernetesSandbox:
        """Use the sandbox of a SandboxClaim that somebody else made, in the configuration's namespace.

        Who made the claim keeps its life: nothing is written on it, no cleanup takes it, and `delete` refuses it. It is
        for agent-sandbox mode only.
        """
        return self._sandbox(self.native().adopt(claim_name).wait())

    async def aadopt(self, claim_name: str) -> KubernetesSandbox:
        """Use the sandbox of somebody else's claim, as `adopt` does."""
        return self._sandbox(await self.native().adopt(claim_name))

    def list(
        self,
        cursor: str | None = None,
        *,
        labels: dict[str, str] | None = None,
        status: Status | None = None,
        **kwargs: Any,
    ) -> SandboxListResponse:
        """List one page of the sandboxes with all of `labels` and in that state; go on with its `cursor`."""
        _refuse(kwargs, "list")
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
        _refuse(kwargs, "alist")
        return page_of(await self.native().list(cursor, labels or {}, status))

    def cleanup(self, max_idle_seconds: int | None = None) -> CleanupResult:
        """Delete the sandboxes whose time is up; `max_idle_seconds` takes the place of their own idle times.

        A sandbox that was used within that time, or runs a command, stays: where its record may be late, the cleanup
        asks the sandbox itself.
        """
        return CleanupResult(**self.native().cleanup(max_idle_seconds).wait())

    async def acleanup(self, max_idle_seconds: int | None = None) -> CleanupResult:
        """Delete sandboxes, as `cleanup` does."""
        return CleanupResult(**await self.native().cleanup(max_idle_seconds))

    def stats(self, idle_threshold_seconds: int = 300) -> ProviderStats:
        """Count the sandboxes; those that were not used for so long are idle."""
        return ProviderStats(**self.native().stats(idle_threshold_seconds).wait())

    async def astats(self, idle_threshold_seconds: int = 300) -> ProviderStats:
        """Count the sandboxes, as `stats` does."""
        return ProviderStats(**await self.native().stats(idle_threshold_seconds))

    def pool_status(self) -> WarmPoolStatus:
        """Say how the pool of `warm_pool_size` is filled: how many Pods wait, and how many sandboxes have taken."""
        return WarmPoolStatus(**self.native().pool_status().wait())

    async def apool_status(self) -> WarmPoolStatus:
        """Say how the warm pool is filled, as `pool_status` does."""
        return WarmPoolStatus(**await self.native().pool_status())

    def extend(self, sandbox_id: str, ttl_seconds: int) -> None:
        """Let the sandbox of that id end so many seconds from now, whatever time it had."""
        self.native().extend(sandbox_id, ttl_seconds).wait()

    async def aextend(self, sandbox_id: str, ttl_seconds: int) -> None:
        """Give a sandbox more time, as `extend` does."""
        await self.native().extend(sandbox_id, ttl_seconds)

    def suspend(self, sandbox_id: str, *, force: bool = False) -> None:
        """End the Pod of that sandbox and keep its volumes, until `resume`; only in agent-sandbox mode.

        `SandboxInfo.durable_dirs` says what survives. A sandbox whose workspace is on no volume would lose it: without
        `force` that is an error that names the directories. Meanwhile every call on the sandbox says that it is
        suspended.
        """
        self.native().suspend(sandbox_id, force=force).wait()

    async def asuspend(self, sandbox_id: str, *, force: bool = False) -> None:
        """Suspend a sandbox, as `suspend` does."""
        await self.native().suspend(sandbox_id, force=force)

    def resume(self, sandbox_id: str, *, policy: dict[str, Any] | None = None) -> KubernetesSandbox:
        """Give a suspended sandbox a Pod again; one that is not suspended is found as it is.

        A policy that it was made with ended with its Pod, and is to be given again.
        """
        return self._sandbox(self.native().resume(sandbox_id, policy_text(policy)).wait())

    async def aresume(self, sandbox_id: str, *, policy: dict[str, Any] | None = None) -> KubernetesSandbox:
        """Resume a sandbox, as `resume` does."""
        return self._sandbox(await self.native().resume(sandbox_id, policy_text(policy)))

    def delete(self, *, sandbox_id: str, **kwargs: Any) -> None:
        """Remove the sandbox of that id with all that belongs to it, and return when it is gone."""
        _refuse(kwargs, "delete")
        self.native().delete(sandbox_id).wait()

    async def adelete(self, *, sandbox_id: str, **kwargs: Any) -> None:
        """Remove a sandbox, as `delete` does."""
        _refuse(kwargs, "adelete")
        await self.native().delete(sandbox_id)

    def close(self) -> None:
        """Stop filling the warm pool, so that another process does. Sandboxes and Pods that wait stay."""
        self.native().close().wait()

    async def aclose(self) -> None:
        """Stop filling the warm pool, as `close` does."""
        await self.native().close()

    def flush_audit(self) -> None:
        """Wait until the audit has heard of all that was done so far, or for five seconds."""
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
        """The provider of this process: a forked child can't use its parent's connections."""
        process, provider = self._made
        if process != os.getpid():
            provider = self._make()
            self._made = (os.getpid(), provider)
        return provider


def policy_text(policy: dict[str, Any] | None) -> str | None:
    """Write a policy down for the native half."""
    return None if policy is None else json.dumps(policy)


def _refuse(arguments: dict[str, Any], function: str) -> None:
    if arguments:
        msg = f"{function}() of this version of sandpod doesn't know: {', '.join(sorted(arguments))}."
        raise ValueError(msg)
