"""Sandboxes on Kubernetes for LangChain Deep Agents.

Example:
    >>> from sandpod import KubernetesProvider, KubernetesProviderConfig
    >>> provider = KubernetesProvider(KubernetesProviderConfig(mode="raw", namespace="agents"))
"""

from sandpod.config import KubernetesProviderConfig
from sandpod.errors import SandboxError, SandboxNotFoundError
from sandpod.info import CleanupResult, ProviderStats, SandboxInfo, SandboxListResponse, WarmPoolStatus
from sandpod.policy import SandboxPolicyWrapper
from sandpod.provider import KubernetesProvider, SandboxProvider
from sandpod.sandbox import KubernetesSandbox

__all__ = [
    "CleanupResult",
    "KubernetesProvider",
    "KubernetesProviderConfig",
    "KubernetesSandbox",
    "ProviderStats",
    "SandboxError",
    "SandboxInfo",
    "SandboxListResponse",
    "SandboxNotFoundError",
    "SandboxPolicyWrapper",
    "SandboxProvider",
    "WarmPoolStatus",
]
