"""Sandboxes on Kubernetes for LangChain Deep Agents.

The import does not load LangChain. Classes that require it are imported on first access; `Sandbox`,
`KubernetesProvider` and the configuration never require it.

Example:
    >>> from sandpod import KubernetesProvider, KubernetesProviderConfig
    >>> provider = KubernetesProvider(KubernetesProviderConfig(mode="raw", namespace="agents"))
"""

from importlib import import_module

from sandpod.errors import SandboxError, SandboxNotFoundError

TYPE_CHECKING = False
"""As in `typing`, whose import would take longer than that of this module."""

if TYPE_CHECKING:
    from sandpod._audit import verify_audit
    from sandpod.config import KubernetesProviderConfig
    from sandpod.info import CleanupResult, ProviderStats, SandboxInfo, SandboxListResponse, WarmPoolStatus
    from sandpod.manager import KubernetesSandboxManager
    from sandpod.plain import Sandbox
    from sandpod.policy import SandboxPolicyWrapper
    from sandpod.provider import KubernetesProvider, SandboxProvider
    from sandpod.sandbox import KubernetesSandbox

__all__ = [
    "CleanupResult",
    "KubernetesProvider",
    "KubernetesProviderConfig",
    "KubernetesSandbox",
    "KubernetesSandboxManager",
    "ProviderStats",
    "Sandbox",
    "SandboxError",
    "SandboxInfo",
    "SandboxListResponse",
    "SandboxNotFoundError",
    "SandboxPolicyWrapper",
    "SandboxProvider",
    "WarmPoolStatus",
    "verify_audit",
]

_LAZY = {
    "CleanupResult": "info",
    "KubernetesProvider": "provider",
    "KubernetesProviderConfig": "config",
    "KubernetesSandbox": "sandbox",
    "KubernetesSandboxManager": "manager",
    "ProviderStats": "info",
    "Sandbox": "plain",
    "SandboxInfo": "info",
    "SandboxListResponse": "info",
    "SandboxPolicyWrapper": "policy",
    "SandboxProvider": "provider",
    "WarmPoolStatus": "info",
    "verify_audit": "_audit",
}

_FOR_DEEP_AGENTS = {"KubernetesSandbox", "KubernetesSandboxManager", "SandboxPolicyWrapper"}


def __getattr__(name: str) -> object:
    """Import an attribute on first access."""
    if name not in _LAZY:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    if name in _FOR_DEEP_AGENTS:
        # Its ImportError names the package to install.
        import_module("sandpod._deepagents")
    value = getattr(import_module(f"sandpod.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
