"""A sandbox that this package's own core drives, with the results of older packages."""

from __future__ import annotations

import dataclasses
import secrets
from typing import TYPE_CHECKING

from sandpod._deepagents import ExecuteResponse
from sandpod._operations import NEVER_STARTED
from sandpod.compat._older import OlderNames
from sandpod.sandbox import KubernetesSandbox

if TYPE_CHECKING:
    from sandpod import _native
    from sandpod._operations import AnswerT, Operation, ResultT


class CoreSandbox(OlderNames, KubernetesSandbox):
    """Adds a limit for outputs, and a directory in which commands start and which is made when it is missing."""

    _max_output_bytes: int | None = None
    """What is returned of a command's output; None: the core's default."""

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
        """Whether a command was not started because its directory is missing, so that it can be run again."""
        if self._working_dir is None or not isinstance(result, ExecuteResponse):
            return False
        return result.exit_code == NEVER_STARTED and f"{self._working_dir} does not exist" in result.output

    def _marker(self) -> str:
        """A file in the working directory: an upload makes the directories above it."""
        return f"{self._working_dir}/.sandpod-{secrets.token_hex(8)}"


def _after(not_started: ResultT, result: ResultT) -> ResultT:
    """The result of a command's second try, with what the first one reported of the sandbox."""
    if isinstance(not_started, ExecuteResponse) and isinstance(result, ExecuteResponse):
        reports = [line for line in not_started.output.splitlines(keepends=True) if line.startswith("[")]
        return dataclasses.replace(result, output="".join(reports) + result.output)
    return result
