"""Sandboxes on Kubernetes for LangChain Deep Agents.

Importing it loads no LangChain: what needs it is loaded when it is first asked for, and `Sandbox`, `KubernetesProvider`
and the configuration never need it.

Example:
    >>> from sandpod import KubernetesProvider, KubernetesProviderConfig
    >>> provider = KubernetesProvider(KubernetesProviderConfig(mode="raw", namespace="agents"))
"""

from importlib import import_module

from sandpod.errors import SandboxError, SandboxNotFoundError

TYPE_CHECKING = False
"""As in `typing`, whose import takes longer than all of this."""

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
    """Load what is asked for."""
    if name not in _LAZY:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    if name in _FOR_DEEP_AGENTS:
        # It says what to install, where Deep Agents' modules would only be missing.
        import_module("sandpod._deepagents")
    value = getattr(import_module(f"sandpod.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
