"""One sandbox for each LangGraph thread, for a backend that is made once."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Self

from sandpod._threads import SHUTDOWN_TIMEOUT, Life, NoThreadError, Threads
from sandpod.compat._core import CoreSandbox
from sandpod.manager import ThreadSandbox, thread_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandpod import _native
    from sandpod.provider import KubernetesProvider

CALLER = "create_sandbox_backend_factory"
CLOSED = "This sandbox backend factory was closed, and its sandboxes are deleted."


class ThreadsSandbox(CoreSandbox, ThreadSandbox):
    """In each call, the sandbox of the thread that calls. A call outside of any thread returns an error."""

    def __init__(self, provider: KubernetesProvider, scope: str, policy: dict[str, Any], working_dir: str) -> None:
        """Remember what is wanted; a thread's sandbox is made by its first call.

        Args:
            provider: Makes the sandboxes.
            scope: Whose threads these are: processes of one scope share sandboxes.
            policy: How paths are seen.
            working_dir: Where commands start.
        """
        threads = Threads(provider.native, scope, Life({}, None, None, recreate=True))
        super().__init__(threads, _nothing, (policy,))
        self._shell_session = None
        self._working_dir = working_dir
        self._only: str | None = None

    def of(self, config: Mapping[str, Any]) -> Self:
        """The sandbox of the thread that a configuration names, whoever calls."""
        one = copy.copy(self)
        one._only = thread_of(config, caller=CALLER)  # noqa: SLF001 - our own
        return one

    @property
    def id(self) -> str:
        """The id of the calling thread's sandbox, be there one or not."""
        try:
            return self._threads.id_of(self._thread())
        except NoThreadError:
            return "agent-sandbox"

    def make(self) -> None:
        """Make the sandbox of one thread now, if it isn't there; those of all are made by their first calls."""
        if self._only:
            self._here()

    async def amake(self) -> None:
        """Make the sandbox of one thread, as `make` does."""
        if self._only:
            await self._ahere()

    def stop(self, *, delete: bool) -> None:
        """Delete the sandbox of one thread, or those that this process made or found."""
        used = self._let_go()
        if delete:
            self._deletion(used).wait()

    async def astop(self, *, delete: bool) -> None:
        """Delete sandboxes, as `stop` does."""
        used = self._let_go()
        if delete:
            await self._deletion(used)

    def _deletion(self, used: list[str]) -> _native.Call[None]:
        return self._threads.native().delete_all(used, SHUTDOWN_TIMEOUT)

    def _let_go(self) -> list[str]:
        if self._only is None:
            return self._threads.close(CLOSED)
        one = self._threads.native().take(self._only)
        return [one] if one else []

    def _thread(self) -> str:
        return self._only or thread_of(caller=CALLER)


def _nothing() -> None:
    """What is done before a call."""
