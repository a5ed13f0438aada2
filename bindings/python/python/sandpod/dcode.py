"""The provider of `dcode --sandbox kubernetes`.

`dcode` passes no settings. They come from `SANDPOD_*` variables and the configuration file, see docs/configuration.md.
`SANDPOD_MODE` selects the mode; the default is raw.

The sandbox of a session is deleted when the session ends. If that fails, for example because the machine crashed, the
sandbox expires eight hours after its last use, and in agent-sandbox mode at the latest a day after its creation, unless
the settings contain other TTLs.
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
from sandpod._dcode_reaper import SessionReaper
from sandpod.config import KubernetesProviderConfig
from sandpod.provider import KubernetesProvider

if TYPE_CHECKING:
    from sandpod.sandbox import KubernetesSandbox


IDLE_SECONDS = 8 * 3600
"""Idle TTL of sandboxes; longer than a user's longest pause."""
CLAIM_SECONDS = 24 * 3600
"""TTL of claims; agent-sandbox has no idle TTL."""
ENDS = {"ttl_seconds", "ttl_idle_seconds", "pod_ttl_seconds"}


class DcodeProvider(SandboxProvider):
    """Provides sandboxes for `dcode`. The constructor reads no settings and does not connect."""

    def __init__(self) -> None:
        """Create the provider."""
        self._made: dict[str, tuple[KubernetesProviderConfig, SessionReaper]] = {}

    @property
    def metadata(self) -> SandboxProviderMetadata:
        """The metadata for `dcode`."""
        return SandboxProviderMetadata(
            name="kubernetes",
            working_dir="/workspace",
            install=SandboxInstallHint(kind="package", name="sandpod"),
            backend_module="sandpod",
        )

    def get_or_create(self, *, sandbox_id: str | None = None, **kwargs: Any) -> KubernetesSandbox:
        """Create a sandbox, or return the existing one of `--sandbox-id`.

        Args:
            sandbox_id: The value of `--sandbox-id`.
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
        """Create or find a sandbox, as `get_or_create` does."""
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
        """Delete the sandbox with this id."""
        self._provider_of(sandbox_id, kwargs).delete(sandbox_id=sandbox_id)
        self._forget(sandbox_id)

    async def adelete(self, *, sandbox_id: str, **kwargs: Any) -> None:
        """Delete a sandbox, as `delete` does."""
        await self._provider_of(sandbox_id, kwargs).adelete(sandbox_id=sandbox_id)
        await asyncio.to_thread(self._forget, sandbox_id)

    def _watched(self, config: KubernetesProviderConfig, sandbox: KubernetesSandbox) -> KubernetesSandbox:
        self._made[sandbox.id] = config, SessionReaper(config, sandbox.id)
        return sandbox

    def _provider_of(self, sandbox_id: str, options: dict[str, Any]) -> KubernetesProvider:
        """Return the provider that created a sandbox: `dcode` passes its options only at creation."""
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
    """Return the TTLs of a new sandbox; none if the settings contain a TTL."""
    if ENDS & config.explicit().keys():
        return {}
    if config.mode == "agent-sandbox":
        return {"ttl_idle_seconds": IDLE_SECONDS, "ttl_seconds": CLAIM_SECONDS}
    return {"ttl_idle_seconds": IDLE_SECONDS}
