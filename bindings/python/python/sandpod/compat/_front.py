"""A backend with the names of older versions, in front of the sandbox that does the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from sandpod._deepagents import BaseSandbox
from sandpod._forwarding import Forwarding
from sandpod.compat._older import OlderNames

if TYPE_CHECKING:
    from sandpod._deepagents import ExecuteOffloadResult


class Front(OlderNames, Forwarding, BaseSandbox):
    """Does what the sandbox behind it does."""

    def __init__(self, backend: BaseSandbox) -> None:
        """Stand in front of a sandbox."""
        self._backend = backend

    def _there(self) -> BaseSandbox:
        return cast("BaseSandbox", self._backend)

    async def _athere(self) -> BaseSandbox:
        return cast("BaseSandbox", self._backend)

    def execute_with_offload(self, command: str, capture_path: str, **options: Any) -> ExecuteOffloadResult:
        """Run a command line, and keep a long output in a file where the sandbox can."""
        return self._there().execute_with_offload(command, capture_path, **options)

    async def aexecute_with_offload(self, command: str, capture_path: str, **options: Any) -> ExecuteOffloadResult:
        """Run a command line, as `execute_with_offload` does."""
        return await (await self._athere()).aexecute_with_offload(command, capture_path, **options)
