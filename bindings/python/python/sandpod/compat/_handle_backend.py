"""A backend for a handle of `k8s_agent_sandbox`: through this package's core, or through the handle's methods."""

from __future__ import annotations

import json
import logging
import threading
from typing import TYPE_CHECKING, Any

from sandpod.compat import _connections
from sandpod.compat._core import CoreSandbox
from sandpod.compat._handle_driver import HandleDriver
from sandpod.compat._paths import Paths
from sandpod.compat._rooted import RootedSandbox
from sandpod.compat._wrapper import Wrapper
from sandpod.config import KubernetesProviderConfig
from sandpod.errors import SandboxError
from sandpod.provider import KubernetesProvider

if TYPE_CHECKING:
    from sandpod import _native
    from sandpod._deepagents import BaseSandbox

logger = logging.getLogger(__name__)


class HandleBackend(Wrapper):
    """Connects to a handle's claim with this package's core where the cluster can be reached, else uses the handle.

    The first call decides. The owner of the handle deletes its sandbox.
    """

    _shell_session: str | None = None
    """Shell session of commands through the core; the methods of a handle have no sessions."""

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
            timeout: Default timeout of commands, in seconds.
            max_output_bytes: Most bytes of a command's output to return.
            policy: Policy of the sandbox.
            working_dir: Working directory of commands; None: that of the sandbox.
            guest_token_file: File with the token of the guest, for connections over the network.
        """
        self.handle = handle
        self.default_timeout = timeout
        driver = HandleDriver(handle, timeout, max_output_bytes, working_dir)
        super().__init__(RootedSandbox(driver, Paths(policy)) if policy else driver)
        self._policy = policy
        self._max_output_bytes = max_output_bytes
        self._working_dir = working_dir
        self._provider = _provider_of(handle, timeout, guest_token_file)
        self._lock = threading.Lock()

    @property
    def id(self) -> str:
        """The name of the claim, or else of the sandbox."""
        return HandleDriver(self.handle).id

    def _target(self) -> BaseSandbox:
        with self._lock:
            if self._provider:
                try:
                    self._adopt(self._provider.native().adopt(self.handle.claim_name).wait())
                except SandboxError as error:
                    self._use_handle(error)
        return super()._target()

    async def _atarget(self) -> BaseSandbox:
        if provider := self._provider:
            try:
                adopted = await provider.native().adopt(self.handle.claim_name)
            except SandboxError as error:
                self._use_handle(error)
            else:
                self._adopt(adopted)
        return await super()._atarget()

    def _adopt(self, native: _native.Sandbox) -> None:
        narrowed = native.narrowed(json.dumps(self._policy)) if self._policy else native
        self._backend = AdoptedSandbox(narrowed, self._max_output_bytes, self._working_dir, self._shell_session)
        self._provider = None

    def _use_handle(self, error: SandboxError) -> None:
        logger.info("Using the methods of the handle of %s, because the core cannot connect: %s", self.id, error)
        self._provider = None


class AdoptedSandbox(CoreSandbox):
    """The sandbox of an adopted claim."""

    def __init__(
        self, native: _native.Sandbox, max_output_bytes: int, working_dir: str | None, shell_session: str | None
    ) -> None:
        """Wrap an adopted sandbox."""
        super().__init__(native, shell_session=shell_session)
        self._max_output_bytes = max_output_bytes
        self._working_dir = working_dir


def _provider_of(handle: Any, timeout: int, guest_token_file: str | None) -> KubernetesProvider | None:
    """Return a provider for the handle's claim; None if its cluster may differ from our configured one."""
    helper = getattr(handle, "k8s_helper", None)
    if helper is None or getattr(helper, "injected_api_client", None) is not None or not handle.claim_name:
        return None
    connection = _connections.of_config(getattr(handle, "connection_config", None))
    connection.pop("connection_mode", None)  # the first mode that works, not that of the handle
    config = KubernetesProviderConfig(
        namespace=handle.namespace, default_exec_timeout=timeout, guest_token_file=guest_token_file, **connection
    )
    return KubernetesProvider(config, only_adopts=True)
