"""The base class of backends that wrap another one and add the names of older versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from sandpod._deepagents import BaseSandbox
from sandpod._forwarding import Forwarding
from sandpod.compat._legacy_names import LegacyNames

if TYPE_CHECKING:
    from sandpod._deepagents import ExecuteOffloadResult


class Wrapper(LegacyNames, Forwarding, BaseSandbox):
    """Forwards every operation to the wrapped backend."""

    def __init__(self, backend: BaseSandbox) -> None:
        """Wrap a backend."""
        self._backend = backend

    def _target(self) -> BaseSandbox:
        return cast("BaseSandbox", self._backend)

    async def _atarget(self) -> BaseSandbox:
        return cast("BaseSandbox", self._backend)

    def execute_with_offload(self, command: str, capture_path: str, **options: Any) -> ExecuteOffloadResult:
        """Run a command line; store long output in a file, if the backend supports it."""
        return self._target().execute_with_offload(command, capture_path, **options)

    async def aexecute_with_offload(self, command: str, capture_path: str, **options: Any) -> ExecuteOffloadResult:
        """Run a command line, as `execute_with_offload` does."""
        return await (await self._atarget()).aexecute_with_offload(command, capture_path, **options)
