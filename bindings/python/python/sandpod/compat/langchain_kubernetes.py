"""The names of `langchain-kubernetes`, the package that this one's own API grew from.

Example:
    >>> from sandpod.compat.langchain_kubernetes import KubernetesProvider, KubernetesProviderConfig
    >>> provider = KubernetesProvider(KubernetesProviderConfig(mode="raw", namespace="agents"))
"""

from __future__ import annotations

from sandpod import provider as _provider
from sandpod import sandbox as _sandbox
from sandpod.compat._older import OlderNames
from sandpod.config import KubernetesProviderConfig
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


class KubernetesSandbox(OlderNames, _sandbox.KubernetesSandbox):
    """`sandpod.KubernetesSandbox`, with the names of older versions beside its own."""


class KubernetesProvider(_provider.KubernetesProvider):
    """`sandpod.KubernetesProvider`, whose sandboxes have the names of older versions beside their own."""

    _sandbox_class = KubernetesSandbox
