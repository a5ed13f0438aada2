"""A replacement for `langchain-kubernetes-agent-sandbox`.

Example:
    >>> from sandpod.compat.langchain_kubernetes_agent_sandbox import KubernetesAgentSandbox
    >>> backend = KubernetesAgentSandbox(sandbox=client.create_sandbox("my-pool"))  # doctest: +SKIP
"""

from __future__ import annotations

from typing import Any

from sandpod._base import AGENT_SESSION
from sandpod.compat._handle_backend import HandleBackend
from sandpod.compat._handle_driver import TIMED_OUT

__all__ = ["KubernetesAgentSandbox"]

COMMAND_TIMEOUT_EXIT_CODE = TIMED_OUT


class KubernetesAgentSandbox(HandleBackend):
    """A sandbox of `k8s_agent_sandbox` as a Deep Agents backend. The caller owns and deletes its handle, `sandbox`."""

    _shell_session = AGENT_SESSION

    def __init__(self, *, sandbox: Any, timeout: int = 300, guest_token_file: str | None = None) -> None:
        """Wrap a handle.

        `timeout` is the default timeout of commands; `guest_token_file` is a file with the token of the guest, for
        connections over the network.
        """
        super().__init__(sandbox, timeout, guest_token_file=guest_token_file)
        self.sandbox = sandbox

    @property
    def id(self) -> str:
        """The handle's `sandbox_id`."""
        return self.sandbox.sandbox_id
