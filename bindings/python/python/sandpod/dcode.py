"""The provider that `dcode --sandbox kubernetes` finds.

`dcode` gives it no settings: they are those of `SANDPOD_*` variables and of the configuration file, which
docs/configuration.md describes. `SANDPOD_MODE` says where sandboxes live; without it they are plain Pods.
"""

# deepagents-code needs a newer Python than the checks run with.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUntypedBaseClass=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from deepagents_code.integrations.sandbox_provider import (
    SandboxInstallHint,
    SandboxNotFoundError,
    SandboxProvider,
    SandboxProviderMetadata,
)

from sandpod import errors
from sandpod.config import KubernetesProviderConfig
from sandpod.provider import KubernetesProvider

if TYPE_CHECKING:
    from sandpod.sandbox import KubernetesSandbox


class DcodeProvider(SandboxProvider):
    """Sandboxes for `dcode`. Making it reads nothing and reaches no cluster."""

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
        provider = _provider(kwargs)
        if sandbox_id is None:
            return provider.get_or_create()
        try:
            return provider.reconnect(sandbox_id)
        except errors.SandboxNotFoundError as error:
            raise SandboxNotFoundError(str(error)) from error

    async def aget_or_create(self, *, sandbox_id: str | None = None, **kwargs: Any) -> KubernetesSandbox:
        """Make or find a sandbox, as `get_or_create` does."""
        provider = _provider(kwargs)
        if sandbox_id is None:
            return await provider.aget_or_create()
        try:
            return await provider.areconnect(sandbox_id)
        except errors.SandboxNotFoundError as error:
            raise SandboxNotFoundError(str(error)) from error

    def delete(self, *, sandbox_id: str, **kwargs: Any) -> None:
        """Remove the sandbox of that id."""
        _provider(kwargs).delete(sandbox_id=sandbox_id)

    async def adelete(self, *, sandbox_id: str, **kwargs: Any) -> None:
        """Remove a sandbox, as `delete` does."""
        await _provider(kwargs).adelete(sandbox_id=sandbox_id)


def _provider(options: dict[str, Any]) -> KubernetesProvider:
    mode = options.pop("mode", None) or os.environ.get("SANDPOD_MODE", "raw")
    return KubernetesProvider(KubernetesProviderConfig.load(mode=mode, **options))
