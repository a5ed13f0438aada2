"""The sandbox of a handle, by the better of two ways to it."""

from __future__ import annotations

import json
import logging
import threading
from typing import TYPE_CHECKING, Any

from sandpod.compat import _connections
from sandpod.compat._core import CoreSandbox
from sandpod.compat._front import Front
from sandpod.compat._handle import HandleSandbox
from sandpod.compat._paths import Paths
from sandpod.compat._rooted import RootedSandbox
from sandpod.config import KubernetesProviderConfig
from sandpod.errors import SandboxError
from sandpod.provider import KubernetesProvider

if TYPE_CHECKING:
    from sandpod import _native
    from sandpod._deepagents import BaseSandbox

logger = logging.getLogger(__name__)


class HeldSandbox(Front):
    """Uses a handle's claim through this package's own core where the cluster can be reached, or else the handle.

    Which of the two it is, is found out by the first call. Whoever made the handle ends its sandbox.
    """

    _shell_session: str | None = None
    """What commands share, where the claim is used through the core: a handle's own methods share nothing."""

    def __init__(  # noqa: PLR0913 - keywords
        self,
        handle: Any,
        timeout: int = 300,
        max_output_bytes: int = 1 << 20,
        policy: dict[str, Any] | None = None,
        *,
        working_dir: str | None = None,
        guest_token_file: str | None = None,
    ) -> None:
        """Wrap a handle.

        Args:
            handle: The handle.
            timeout: Seconds for commands that have none of their own.
            max_output_bytes: What is returned of a command's output.
            policy: How paths are seen, and what may be done.
            working_dir: Where commands start, if not in the sandbox's own directory.
            guest_token_file: A file with the secret that opens the guest over the network.
        """
        self.handle = handle
        self.default_timeout = timeout
        driven = HandleSandbox(handle, timeout, max_output_bytes, working_dir)
        super().__init__(RootedSandbox(driven, Paths(policy)) if policy else driven)
        self._policy = policy
        self._max_output_bytes = max_output_bytes
        self._working_dir = working_dir
        self._provider = _provider_of(handle, timeout, guest_token_file)
        self._lock = threading.Lock()

    @property
    def id(self) -> str:
        """The name of its claim, or else of its sandbox."""
        return HandleSandbox(self.handle).id

    def _there(self) -> BaseSandbox:
        with self._lock:
            if self._provider:
                try:
                    self._adopt(self._provider.native().adopt(self.handle.claim_name).wait())
                except SandboxError as error:
                    self._drive(error)
        return super()._there()

    async def _athere(self) -> BaseSandbox:
        if provider := self._provider:
            try:
                adopted = await provider.native().adopt(self.handle.claim_name)
            except SandboxError as error:
                self._drive(error)
            else:
                self._adopt(adopted)
        return await super()._athere()

    def _adopt(self, native: _native.Sandbox) -> None:
        narrowed = native.narrowed(json.dumps(self._policy)) if self._policy else native
        self._backend = AdoptedSandbox(narrowed, self._max_output_bytes, self._working_dir, self._shell_session)
        self._provider = None

    def _drive(self, error: SandboxError) -> None:
        logger.info("The handle of %s is driven by its own methods, because: %s", self.id, error)
        self._provider = None


class AdoptedSandbox(CoreSandbox):
    """The sandbox of somebody else's claim."""

    def __init__(
        self, native: _native.Sandbox, max_output_bytes: int, working_dir: str | None, shell_session: str | None
    ) -> None:
        """Wrap what a provider adopted."""
        super().__init__(native, shell_session=shell_session)
        self._max_output_bytes = max_output_bytes
        self._working_dir = working_dir


def _provider_of(handle: Any, timeout: int, guest_token_file: str | None) -> KubernetesProvider | None:
    """Who can adopt the handle's claim: none where its cluster may be another than the one that we would find."""
    helper = getattr(handle, "k8s_helper", None)
    if helper is None or getattr(helper, "injected_api_client", None) is not None or not handle.claim_name:
        return None
    way = _connections.of_config(getattr(handle, "connection_config", None))
    way.pop("connection_mode", None)  # of the ways to the guest the first that works, not the handle's own
    config = KubernetesProviderConfig(
        namespace=handle.namespace, default_exec_timeout=timeout, guest_token_file=guest_token_file, **way
    )
    return KubernetesProvider(config, only_adopts=True)
