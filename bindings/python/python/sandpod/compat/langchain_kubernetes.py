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
from typing import Any

from sandpod import config as _config
from sandpod import provider as _provider
from sandpod import sandbox as _sandbox
from sandpod.compat._older import OlderNames
from sandpod.errors import SandboxError, SandboxNotFoundError
from sandpod.info import CleanupResult, ProviderStats, SandboxInfo, SandboxListResponse, WarmPoolStatus
from sandpod.manager import KubernetesSandboxManager
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
