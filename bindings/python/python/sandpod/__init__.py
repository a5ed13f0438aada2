"""Sandboxes on Kubernetes for LangChain Deep Agents.

Example:
    >>> from sandpod import KubernetesProvider, KubernetesProviderConfig
    >>> provider = KubernetesProvider(KubernetesProviderConfig(mode="raw", namespace="agents"))
"""

from sandpod.config import KubernetesProviderConfig
from sandpod.errors import SandboxError, SandboxNotFoundError
from sandpod.provider import KubernetesProvider, SandboxProvider
from sandpod.sandbox import KubernetesSandbox

__all__ = [
    "KubernetesProvider",
    "KubernetesProviderConfig",
    "KubernetesSandbox",
    "SandboxError",
    "SandboxNotFoundError",
    "SandboxProvider",
]
