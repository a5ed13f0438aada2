"""A sandbox of this package's core, with the names and limits of older packages."""

from __future__ import annotations

import dataclasses
import secrets
from typing import TYPE_CHECKING

from sandpod._deepagents import ExecuteResponse
from sandpod._operations import NEVER_STARTED
from sandpod.compat._legacy_names import LegacyNames
from sandpod.sandbox import KubernetesSandbox

if TYPE_CHECKING:
    from sandpod import _native
    from sandpod._operations import AnswerT, Operation, ResultT


class CoreSandbox(LegacyNames, KubernetesSandbox):
    """Adds an output limit, and a working directory that is created if it is missing."""

    _max_output_bytes: int | None = None
    """Most bytes of a command's output to return; None: the default of the core."""

    def _execution(
        self, command: str, timeout: int | None, max_output_bytes: int | None = None
    ) -> Operation[_native.Executed, ExecuteResponse]:
        return super()._execution(command, timeout, max_output_bytes or self._max_output_bytes)

    def _wait(self, operation: Operation[AnswerT, ResultT]) -> ResultT:
        result = super()._wait(operation)
        if self._lacks_working_dir(result):
            marker = self._marker()
            if self.upload_files([(marker, b"")])[0].error is None:
                self.delete(marker)
                return _after(result, super()._wait(operation))
        return result

    async def _run(self, operation: Operation[AnswerT, ResultT]) -> ResultT:
        result = await super()._run(operation)
        if self._lacks_working_dir(result):
            marker = self._marker()
            if (await self.aupload_files([(marker, b"")]))[0].error is None:
                await self.adelete(marker)
                return _after(result, await super()._run(operation))
        return result

    def _lacks_working_dir(self, result: object) -> bool:
        """Return whether a command was not started because its working directory is missing."""
        if self._working_dir is None or not isinstance(result, ExecuteResponse):
            return False
        return result.exit_code == NEVER_STARTED and f"{self._working_dir} does not exist" in result.output

    def _marker(self) -> str:
        """Return a file in the working directory; its upload creates the directory."""
        return f"{self._working_dir}/.sandpod-{secrets.token_hex(8)}"


def _after(not_started: ResultT, result: ResultT) -> ResultT:
    """Return the result of a retried command, with the reports of the first attempt."""
    if isinstance(not_started, ExecuteResponse) and isinstance(result, ExecuteResponse):
        reports = [line for line in not_started.output.splitlines(keepends=True) if line.startswith("[")]
        return dataclasses.replace(result, output="".join(reports) + result.output)
    return result
