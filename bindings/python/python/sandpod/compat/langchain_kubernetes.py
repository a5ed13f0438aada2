"""A replacement for `langchain-kubernetes`, whose API is the origin of this package's own.

It also uses the names of that package in the cluster: labels and annotations have the prefix
`langchain-kubernetes.bitkaio.com/`, and Pods and namespaces per sandbox are named `deepagents-<id>`, with the labels of
the kubectl commands in its documentation.

Example:
    >>> from sandpod.compat.langchain_kubernetes import KubernetesProvider, KubernetesProviderConfig
    >>> provider = KubernetesProvider(KubernetesProviderConfig(mode="raw", namespace="agents"))
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from sandpod import config as _config
from sandpod import manager as _manager
from sandpod import provider as _provider
from sandpod import sandbox as _sandbox
from sandpod.compat._legacy_names import LegacyNames
from sandpod.errors import SandboxError, SandboxNotFoundError
from sandpod.info import CleanupResult, ProviderStats, SandboxInfo, SandboxListResponse, WarmPoolStatus
from sandpod.provider import SandboxProvider

__all__ = [
    "CleanupResult",
    "KubernetesProvider",
    "KubernetesProviderConfig",
    "KubernetesSandbox",
    "KubernetesSandboxManager",
    "ProviderStats",
    "SandboxError",
    "SandboxInfo",
    "SandboxListResponse",
    "SandboxNotFoundError",
    "SandboxProvider",
    "WarmPoolStatus",
]

MANAGED_BY = {"managed-by": "langchain-kubernetes"}
"""The label of every sandbox, without the prefix."""


@dataclass
class KubernetesProviderConfig(_config.KubernetesProviderConfig):
    """`sandpod.KubernetesProviderConfig` with the other package's names in the cluster."""

    label_prefix: str = "langchain-kubernetes.bitkaio.com/"
    naming: str = field(default="langchain-kubernetes", kw_only=True)

    def __post_init__(self) -> None:
        """Reject an unknown mode, and agent-sandbox mode without a template."""
        super().__post_init__()
        if self.mode == "agent-sandbox" and self.template_name is None:
            msg = (
                "template_name is required when mode='agent-sandbox'. Set "
                "KubernetesProviderConfig(template_name='my-template') or use mode='raw' for direct Pod management."
            )
            raise ValueError(msg)

    def explicit(self) -> dict[str, Any]:
        """Return the options that differ from the defaults; local mode has no naming options."""
        options = super().explicit()
        if self.mode == "local":
            for name in ("naming", "label_prefix"):
                options.pop(name, None)
            return options
        return options | {"default_labels": MANAGED_BY | (self.default_labels or {})}


class KubernetesSandbox(LegacyNames, _sandbox.KubernetesSandbox):
    """`sandpod.KubernetesSandbox` with the additional names of older versions."""


class KubernetesProvider(_provider.KubernetesProvider):
    """`sandpod.KubernetesProvider`, whose sandboxes have the additional names of older versions."""

    _sandbox_class = KubernetesSandbox


class ThreadSandbox(_manager.ThreadSandbox, KubernetesSandbox):
    """`sandpod.manager.ThreadSandbox` with the additional names of older versions."""


class KubernetesSandboxManager(_manager.KubernetesSandboxManager):
    """`sandpod.KubernetesSandboxManager`, whose sandboxes have the additional names of older versions."""

    _provider_class: ClassVar[type[_provider.KubernetesProvider]] = KubernetesProvider

    def backend(self) -> ThreadSandbox:
        """Return a backend that uses the sandbox of the calling thread in each call."""
        return ThreadSandbox(self._threads, self._cleanup_thread.start)

    async def get_or_reconnect(self, sandbox_id: str | None = None) -> KubernetesSandbox:
        """Return the sandbox with this id, or create one; a new sandbox has a new id."""
        return cast("KubernetesSandbox", await super().get_or_reconnect(sandbox_id))
