"""The names of `langchain-kubernetes-agent-sandbox`.

Example:
    >>> from sandpod.compat.langchain_kubernetes_agent_sandbox import KubernetesAgentSandbox
    >>> backend = KubernetesAgentSandbox(sandbox=client.create_sandbox("my-pool"))  # doctest: +SKIP
"""

from __future__ import annotations

from typing import Any

from sandpod._base import AGENT_SESSION
from sandpod.compat._handle import TIMED_OUT
from sandpod.compat._held import HeldSandbox

__all__ = ["KubernetesAgentSandbox"]

COMMAND_TIMEOUT_EXIT_CODE = TIMED_OUT


class KubernetesAgentSandbox(HeldSandbox):
    """A sandbox of `k8s_agent_sandbox` as a Deep Agents backend. Its handle is `sandbox`; its life is the caller's."""

    _shell_session = AGENT_SESSION

    def __init__(self, *, sandbox: Any, timeout: int = 300, guest_token_file: str | None = None) -> None:
        """Wrap a handle.

        `timeout` is for commands that have none of their own, and `guest_token_file` has the secret that opens the
        guest over the network.
        """
        super().__init__(sandbox, timeout, guest_token_file=guest_token_file)
        self.sandbox = sandbox

    @property
    def id(self) -> str:
        """The handle's `sandbox_id`."""
        return self.sandbox.sandbox_id
