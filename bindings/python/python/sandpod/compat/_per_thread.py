"""A backend that uses the sandbox of the calling LangGraph thread."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Self

from sandpod._threads import SHUTDOWN_TIMEOUT, NoThreadError, SandboxSettings, Threads
from sandpod.compat._core import CoreSandbox
from sandpod.manager import ThreadSandbox, thread_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandpod import _native
    from sandpod.provider import KubernetesProvider

CALLER = "create_sandbox_backend_factory"
CLOSED = "This sandbox backend factory was closed, and its sandboxes are deleted."


class PerThreadSandbox(CoreSandbox, ThreadSandbox):
    """Uses the sandbox of the calling thread. A call outside any thread returns an error."""

    def __init__(self, provider: KubernetesProvider, scope: str, policy: dict[str, Any], working_dir: str) -> None:
        """Store the settings; the first call of a thread creates its sandbox.

        Args:
            provider: Provider of the sandboxes.
            scope: Processes with the same scope share the sandboxes of threads.
            policy: Policy of the sandboxes.
            working_dir: Working directory of commands.
        """
        threads = Threads(provider.native, scope, SandboxSettings({}, None, None, recreate=True))
        super().__init__(threads, _nothing, (policy,))
        self._shell_session = None
        self._working_dir = working_dir
        self._only: str | None = None

    def of(self, config: Mapping[str, Any]) -> Self:
        """Return the backend of the thread in a configuration, for calls from any thread."""
        one = copy.copy(self)
        one._only = thread_of(config, caller=CALLER)  # noqa: SLF001 - same class
        return one

    @property
    def id(self) -> str:
        """The id of the calling thread's sandbox, which may not exist yet."""
        try:
            return self._threads.id_of(self._thread())
        except NoThreadError:
            return "agent-sandbox"

    def make(self) -> None:
        """Create the sandbox of a single thread now; without one, do nothing."""
        if self._only:
            self._current()

    async def amake(self) -> None:
        """Create the sandbox of a single thread, as `make` does."""
        if self._only:
            await self._acurrent()

    def stop(self, *, delete: bool) -> None:
        """Delete the sandbox of a single thread, or all that this process created or found."""
        used = self._release()
        if delete:
            self._deletion(used).wait()

    async def astop(self, *, delete: bool) -> None:
        """Delete sandboxes, as `stop` does."""
        used = self._release()
        if delete:
            await self._deletion(used)

    def _deletion(self, used: list[str]) -> _native.Call[None]:
        return self._threads.native().delete_all(used, SHUTDOWN_TIMEOUT)

    def _release(self) -> list[str]:
        if self._only is None:
            return self._threads.close(CLOSED)
        one = self._threads.native().take(self._only)
        return [one] if one else []

    def _thread(self) -> str:
        return self._only or thread_of(caller=CALLER)


def _nothing() -> None:
    """Do nothing before a call."""
