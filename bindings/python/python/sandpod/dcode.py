"""The provider that `dcode --sandbox kubernetes` finds.

`dcode` gives it no settings: they are those of `SANDPOD_*` variables and of the configuration file, which
docs/configuration.md describes. `SANDPOD_MODE` says where sandboxes live; without it they are plain Pods.

A sandbox that a session makes is deleted when the session ends, however it ends. Where that fails, for example because
the machine went down, the sandbox ends by itself: eight hours after its last use, and in agent-sandbox mode also a day
after it was made, unless the settings say another time.
"""

# deepagents-code needs a newer Python than the checks run with.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUntypedBaseClass=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, TypedDict

from deepagents_code.integrations.sandbox_provider import (
    SandboxInstallHint,
    SandboxNotFoundError,
    SandboxProvider,
    SandboxProviderMetadata,
)

from sandpod import errors
from sandpod._dcode_end import SessionEnd
from sandpod.config import KubernetesProviderConfig
from sandpod.provider import KubernetesProvider

if TYPE_CHECKING:
    from sandpod.sandbox import KubernetesSandbox


IDLE_SECONDS = 8 * 3600
"""When a sandbox ends that no session deleted, after its last use: later than a user's longest pause."""
CLAIM_SECONDS = 24 * 3600
"""When a claim ends: its cluster knows no idle time."""
ENDS = {"ttl_seconds", "ttl_idle_seconds", "pod_ttl_seconds"}


class DcodeProvider(SandboxProvider):
    """Sandboxes for `dcode`. Making it reads nothing and reaches no cluster."""

    def __init__(self) -> None:
        """Know of no sandbox."""
        self._made: dict[str, tuple[KubernetesProviderConfig, SessionEnd]] = {}

    @property
    def metadata(self) -> SandboxProviderMetadata:
        """What `dcode` says of it."""
        return SandboxProviderMetadata(
            name="kubernetes",
            working_dir="/workspace",
            install=SandboxInstallHint(kind="package", name="sandpod"),
            backend_module="sandpod",
        )

    def get_or_create(self, *, sandbox_id: str | None = None, **kwargs: Any) -> KubernetesSandbox:
        """Make a sandbox, or find the one of `--sandbox-id`, which must be there.

        Args:
            sandbox_id: What `--sandbox-id` says.
            **kwargs: Options of the configuration, such as `mode`, `template_name` and `connection_mode`.
        """
        config = _config(kwargs)
        provider = KubernetesProvider(config)
        if sandbox_id is None:
            return self._watched(config, provider.get_or_create(**_end(config)))
        try:
            return provider.reconnect(sandbox_id)
        except errors.SandboxNotFoundError as error:
            raise SandboxNotFoundError(str(error)) from error

    async def aget_or_create(self, *, sandbox_id: str | None = None, **kwargs: Any) -> KubernetesSandbox:
        """Make or find a sandbox, as `get_or_create` does."""
        config = _config(kwargs)
        provider = KubernetesProvider(config)
        if sandbox_id is None:
            sandbox = await provider.aget_or_create(**_end(config))
            return await asyncio.to_thread(self._watched, config, sandbox)
        try:
            return await provider.areconnect(sandbox_id)
        except errors.SandboxNotFoundError as error:
            raise SandboxNotFoundError(str(error)) from error

    def delete(self, *, sandbox_id: str, **kwargs: Any) -> None:
        """Remove the sandbox of that id."""
        self._provider_of(sandbox_id, kwargs).delete(sandbox_id=sandbox_id)
        self._forget(sandbox_id)

    async def adelete(self, *, sandbox_id: str, **kwargs: Any) -> None:
        """Remove a sandbox, as `delete` does."""
        await self._provider_of(sandbox_id, kwargs).adelete(sandbox_id=sandbox_id)
        await asyncio.to_thread(self._forget, sandbox_id)

    def _watched(self, config: KubernetesProviderConfig, sandbox: KubernetesSandbox) -> KubernetesSandbox:
        self._made[sandbox.id] = config, SessionEnd(config, sandbox.id)
        return sandbox

    def _provider_of(self, sandbox_id: str, options: dict[str, Any]) -> KubernetesProvider:
        """The provider that made a sandbox: `dcode` gives its options only where it makes one."""
        made = self._made.get(sandbox_id)
        return KubernetesProvider(made[0] if made else _config(options))

    def _forget(self, sandbox_id: str) -> None:
        if made := self._made.pop(sandbox_id, None):
            made[1].cancel()


def _config(options: dict[str, Any]) -> KubernetesProviderConfig:
    mode = options.pop("mode", None) or os.environ.get("SANDPOD_MODE", "raw")
    return KubernetesProviderConfig.load(mode=mode, **options)


class _Times(TypedDict, total=False):
    ttl_seconds: int
    ttl_idle_seconds: int


def _end(config: KubernetesProviderConfig) -> _Times:
    """The times to live of a new sandbox; none where the settings say one."""
    if ENDS & config.explicit().keys():
        return {}
    if config.mode == "agent-sandbox":
        return {"ttl_idle_seconds": IDLE_SECONDS, "ttl_seconds": CLAIM_SECONDS}
    return {"ttl_idle_seconds": IDLE_SECONDS}
