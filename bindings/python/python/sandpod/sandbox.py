"""Sandboxes for Deep Agents' tools."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any, Self

from sandpod import _offload, _operations
from sandpod._base import SandboxBase
from sandpod._deepagents import BaseSandbox
from sandpod._reports import reporting

if TYPE_CHECKING:
    from sandpod import _native
    from sandpod._deepagents import (
        DeleteResult,
        EditResult,
        ExecuteOffloadResult,
        ExecuteResponse,
        FileDownloadResponse,
        FileUploadResponse,
        GlobResult,
        GrepResult,
        LsResult,
        ReadResult,
        WriteResult,
    )
    from sandpod._operations import AnswerT, Operation, ResultT


class KubernetesSandbox(SandboxBase, BaseSandbox):
    """One sandbox. A `KubernetesProvider` creates it.

    The guest in the sandbox runs every operation, so the image needs neither Python nor GNU tools. Each operation has a
    blocking and an async form. One object may be used by any number of threads and event loops. Failures are returned
    in the result; only invalid arguments raise.

    If the sandbox lost its files since its last use, by this or another process, the first result reports it: `execute`
    runs the command and puts the report before its output; every other call does nothing and returns it as the error.
    """

    _working_dir: str | None = None
    """Working directory of commands; None: that of the sandbox."""

    def narrowed(self, policy: dict[str, Any]) -> Self:
        """Return the same sandbox under an additional policy, see docs/policy.md."""
        narrowed = copy.copy(self)
        narrowed._native = self._native.narrowed(json.dumps(policy))  # noqa: SLF001 - same class
        return narrowed

    def _execution(
        self, command: str, timeout: int | None, max_output_bytes: int | None = None
    ) -> Operation[_native.Executed, ExecuteResponse]:
        return _operations.execute(
            command,
            timeout,
            shell_session=self._shell_session,
            max_output_bytes=max_output_bytes,
            working_dir=self._working_dir,
        )

    def _wait(self, operation: Operation[AnswerT, ResultT]) -> ResultT:
        return operation.wait(lambda: reporting(self._current(), operation.written))

    async def _run(self, operation: Operation[AnswerT, ResultT]) -> ResultT:
        async def here() -> _native.Sandbox:
            return reporting(await self._acurrent(), operation.written)

        return await operation.run(here)

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command line in the sandbox's shell.

        Args:
            command: The line for `/bin/sh`, of any length.
            timeout: Seconds after which the command and its child processes are killed, with the exit code 124. None:
                `default_exec_timeout` of the configuration; 0: no timeout. If the sandbox cannot be reached, the call
                returns ten seconds after the timeout, with the exit code 125 or None.

        Returns:
            Stdout and stderr in the order written, and the exit code: 125 if the command was not started, None if its
            outcome is unknown.
        """
        return self._wait(self._execution(command, timeout))

    async def aexecute(
        self,
        command: str,
        *,
        timeout: int | None = None,  # noqa: ASYNC109 - it is enforced in the sandbox
    ) -> ExecuteResponse:
        """Run a command line, as `execute` does. Cancelling kills the command."""
        return await self._run(self._execution(command, timeout))

    def execute_with_offload(
        self,
        command: str,
        capture_path: str,
        *,
        max_inline_bytes: int,
        max_capture_bytes: int | None = None,
        timeout: int | None = None,
    ) -> ExecuteOffloadResult:
        """Run a command line; store output of more than `max_inline_bytes` in a file and return a preview.

        The file holds at most 7 MiB; `truncated` is set if there was more. If the file cannot be written, the output is
        returned as by `execute`.
        """
        response = self._wait(self._execution(command, timeout, _offload.limit(max_capture_bytes)))
        content = _offload.to_capture(response, max_inline_bytes)
        if content is None or self.upload_files([(capture_path, content)])[0].error is not None:
            return _offload.inline(response)
        return _offload.preview(response)

    async def aexecute_with_offload(
        self,
        command: str,
        capture_path: str,
        *,
        max_inline_bytes: int,
        max_capture_bytes: int | None = None,
        timeout: int | None = None,  # noqa: ASYNC109 - it is enforced in the sandbox
    ) -> ExecuteOffloadResult:
        """Run a command line, as `execute_with_offload` does."""
        response = await self._run(self._execution(command, timeout, _offload.limit(max_capture_bytes)))
        content = _offload.to_capture(response, max_inline_bytes)
        if content is None or (await self.aupload_files([(capture_path, content)]))[0].error is not None:
            return _offload.inline(response)
        return _offload.preview(response)

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read `limit` lines of a text file from line `offset` on (the first is 0), or a binary file as base64."""
        return self._wait(_operations.read(file_path, offset, limit))

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read a file, as `read` does."""
        return await self._run(_operations.read(file_path, offset, limit))

    def write(self, file_path: str, content: str) -> WriteResult:
        """Create or atomically replace a file; missing parent directories are created."""
        return self._wait(_operations.write(file_path, content))

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """Write a file, as `write` does."""
        return await self._run(_operations.write(file_path, content))

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Replace text in a file. Concurrent changes are not lost."""
        return self._wait(_operations.edit(file_path, old_string, new_string, replace_all=replace_all))

    async def aedit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Edit a file, as `edit` does."""
        return await self._run(_operations.edit(file_path, old_string, new_string, replace_all=replace_all))

    def delete(self, file_path: str) -> DeleteResult:
        """Delete a file, a link, or a directory with its content."""
        return self._wait(_operations.delete(file_path))

    async def adelete(self, file_path: str) -> DeleteResult:
        """Delete a file, as `delete` does."""
        return await self._run(_operations.delete(file_path))

    def ls(self, path: str) -> LsResult:
        """List a directory, with sizes and times."""
        return self._wait(_operations.ls(path))

    async def als(self, path: str) -> LsResult:
        """List a directory, as `ls` does."""
        return await self._run(_operations.ls(path))

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find regular files by name below `path`, or below `/`. The returned paths are absolute."""
        return self._wait(_operations.glob(pattern, path))

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by name, as `glob` does."""
        return await self._run(_operations.glob(pattern, path))

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Find lines that contain a literal text, below `path` or the working directory."""
        return self._wait(_operations.grep(pattern, path, glob, max_count))

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Find lines, as `grep` does."""
        return await self._run(_operations.grep(pattern, path, glob, max_count))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files of any size; results are per file, in the given order."""
        return self._wait(_operations.upload(files))

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files, as `upload_files` does."""
        return await self._run(_operations.upload(files))

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read whole files of any size; results are per file, in the given order."""
        return self._wait(_operations.download(paths))

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read whole files, as `download_files` does."""
        return await self._run(_operations.download(paths))
