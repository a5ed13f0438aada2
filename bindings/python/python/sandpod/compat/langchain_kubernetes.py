"""The names of `langchain-kubernetes`, the package that this one's own API grew from.

Also the names in the cluster: labels and the annotations of times begin with `langchain-kubernetes.bitkaio.com/`, and
plain Pods and namespaces of their own are called `deepagents-<id>`, with the labels that its documentation has kubectl
look for.

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
from sandpod.compat._older import OlderNames
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
"""The label of every sandbox, below the prefix."""


@dataclass
class KubernetesProviderConfig(_config.KubernetesProviderConfig):
    """`sandpod.KubernetesProviderConfig`, with the names in the cluster that users of the older package know."""

    label_prefix: str = "langchain-kubernetes.bitkaio.com/"
    naming: str = field(default="langchain-kubernetes", kw_only=True)

    def __post_init__(self) -> None:
        """Refuse a mode that does not exist, and agent-sandbox without a template."""
        super().__post_init__()
        if self.mode == "agent-sandbox" and self.template_name is None:
            msg = (
                "template_name is required when mode='agent-sandbox'. Set "
                "KubernetesProviderConfig(template_name='my-template') or use mode='raw' for direct Pod management."
            )
            raise ValueError(msg)

    def explicit(self) -> dict[str, Any]:
        """What differs from the defaults. Only what is in a cluster has names and labels."""
        options = super().explicit()
        if self.mode == "local":
            for name in ("naming", "label_prefix"):
                options.pop(name, None)
            return options
        return options | {"default_labels": MANAGED_BY | (self.default_labels or {})}


class KubernetesSandbox(OlderNames, _sandbox.KubernetesSandbox):
    """`sandpod.KubernetesSandbox`, with the names of older versions beside its own."""


class KubernetesProvider(_provider.KubernetesProvider):
    """`sandpod.KubernetesProvider`, whose sandboxes have the names of older versions beside their own."""

    _sandbox_class = KubernetesSandbox


class ThreadSandbox(_manager.ThreadSandbox, KubernetesSandbox):
    """In each call, the sandbox of the thread that calls, with the names of older versions beside its own."""


class KubernetesSandboxManager(_manager.KubernetesSandboxManager):
    """`sandpod.KubernetesSandboxManager`, whose sandboxes have the names of older versions beside their own."""

    _provider_class: ClassVar[type[_provider.KubernetesProvider]] = KubernetesProvider

    def backend(self) -> ThreadSandbox:
        """Return a backend that is, in each call, the sandbox of the thread that calls."""
        return ThreadSandbox(self._threads, self._sweeper.start)

    async def get_or_reconnect(self, sandbox_id: str | None = None) -> KubernetesSandbox:
        """Find the sandbox of that id, or make one; its id differs from the one given if there was none."""
        return cast("KubernetesSandbox", await super().get_or_reconnect(sandbox_id))
