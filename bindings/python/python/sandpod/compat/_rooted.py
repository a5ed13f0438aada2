"""A backend with the root and rules of `Paths`, around a sandbox without a policy."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

from sandpod._deepagents import (
    BackendProtocol,
    DeleteResult,
    EditResult,
    ExecuteOffloadResult,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)
from sandpod.compat._paths import RefusedError
from sandpod.compat._wrapper import Wrapper

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandpod._deepagents import BaseSandbox, FileInfo, GrepMatch
    from sandpod.compat._paths import Paths

ResultT = TypeVar("ResultT", ReadResult, WriteResult, EditResult, DeleteResult, LsResult, GlobResult, GrepResult)
ChangeT = TypeVar("ChangeT", WriteResult, EditResult, DeleteResult)


class RootedSandbox(Wrapper):
    """Shows a sandbox below a root, and rejects paths by the rules of `Paths`.

    Asynchronous file calls run in threads.
    """

    def __init__(self, backend: BaseSandbox, paths: Paths) -> None:
        """Wrap a backend."""
        super().__init__(backend)
        self._paths = paths

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read a page of a file."""
        read = super().read
        return self._do("read", file_path, lambda path: read(path, offset, limit), lambda why: ReadResult(error=why))

    def write(self, file_path: str, content: str) -> WriteResult:
        """Write a file."""
        write = super().write
        return self._change("write", file_path, lambda path: write(path, content), lambda why: WriteResult(error=why))

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Replace text in a file."""
        edit = super().edit

        def work(path: str) -> EditResult:
            return edit(path, old_string, new_string, replace_all)

        return self._change("edit", file_path, work, lambda why: EditResult(error=why))

    def delete(self, file_path: str) -> DeleteResult:
        """Delete a file, or a directory with its content."""
        return self._change("delete", file_path, super().delete, lambda why: DeleteResult(error=why))

    def ls(self, path: str) -> LsResult:
        """List a directory."""
        result = self._do("list", path, super().ls, lambda why: LsResult(error=why))
        self._show(result.entries)
        return result

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by name."""
        glob = super().glob

        def work(real: str) -> GlobResult:
            self._paths.check(pattern)
            return glob(pattern, real)

        start = path or self._paths.search_root or "/"
        result = self._do("glob", start, work, lambda why: GlobResult(error=why))
        self._show(result.matches)
        return result

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Find lines that contain a text."""
        grep = super().grep
        start = path or self._paths.search_root
        if start is None:
            return grep(pattern, None, glob, max_count=max_count)

        def work(real: str) -> GrepResult:
            return grep(pattern, real, glob, max_count=max_count)

        result = self._do("grep", start, work, lambda why: GrepResult(error=why))
        self._show(result.matches)
        return result

    def execute_with_offload(self, command: str, capture_path: str, **options: Any) -> ExecuteOffloadResult:
        """Run a command line; long output is stored where `read` finds it by the same path."""
        real = self._captured(capture_path)
        if real is None:
            return ExecuteOffloadResult(offloaded=False, response=self.execute(command, timeout=options.get("timeout")))
        return super().execute_with_offload(command, real, **options)

    async def aexecute_with_offload(self, command: str, capture_path: str, **options: Any) -> ExecuteOffloadResult:
        """Run a command line, as `execute_with_offload` does."""
        real = self._captured(capture_path)
        if real is None:
            response = await self.aexecute(command, timeout=options.get("timeout"))
            return ExecuteOffloadResult(offloaded=False, response=response)
        return await super().aexecute_with_offload(command, real, **options)

    def _captured(self, path: str) -> str | None:
        """Return the path for captured output, without checking prefixes; None if it is rejected."""
        try:
            return self._paths.real("upload", path)
        except RefusedError:
            return None

    # The forwarded versions of these would bypass the checks above.
    aread = BackendProtocol.aread
    awrite = BackendProtocol.awrite
    aedit = BackendProtocol.aedit
    als = BackendProtocol.als
    aglob = BackendProtocol.aglob
    agrep = BackendProtocol.agrep
    aupload_files = BackendProtocol.aupload_files
    adownload_files = BackendProtocol.adownload_files

    async def adelete(self, file_path: str) -> DeleteResult:
        """Delete a file or a directory, as `delete` does."""
        return await asyncio.to_thread(self.delete, file_path)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files; results are per file."""
        return [self._upload(path, content) for path, content in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read whole files; results are per file."""
        return [self._download(path) for path in paths]

    def _upload(self, path: str, content: bytes) -> FileUploadResponse:
        try:
            (done,) = self._backend.upload_files([(self._paths.real("upload", path), content)])
        except RefusedError:
            return FileUploadResponse(path=path, error="invalid_path")
        return FileUploadResponse(path=path, error=done.error)

    def _download(self, path: str) -> FileDownloadResponse:
        try:
            (done,) = self._backend.download_files([self._paths.real("download", path)])
        except RefusedError:
            return FileDownloadResponse(path=path, error="invalid_path")
        return FileDownloadResponse(path=path, content=done.content, error=done.error)

    def _do(
        self, operation: str, path: str, work: Callable[[str], ResultT], failed: Callable[[str], ResultT]
    ) -> ResultT:
        try:
            real = self._paths.real(operation, path)
            result = work(real)
        except RefusedError as refused:
            return failed(str(refused))
        if result.error is None:
            return result
        return dataclasses.replace(result, error=result.error.replace(f"'{real}'", f"'{path}'"))

    def _change(
        self, operation: str, path: str, work: Callable[[str], ChangeT], failed: Callable[[str], ChangeT]
    ) -> ChangeT:
        result = self._do(operation, path, work, failed)
        return result if result.path is None else dataclasses.replace(result, path=self._paths.public(result.path))

    def _show(self, found: list[FileInfo] | list[GrepMatch] | None) -> None:
        for each in found or []:
            each["path"] = self._paths.public(each["path"])
