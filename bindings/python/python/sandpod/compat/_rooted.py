"""Paths and rules for a sandbox that has none of its own."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

from sandpod._deepagents import (
    BackendProtocol,
    DeleteResult,
    EditResult,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)
from sandpod.compat._front import Front
from sandpod.compat._paths import Paths, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandpod._deepagents import BaseSandbox, FileInfo, GrepMatch

ResultT = TypeVar("ResultT")
ChangeT = TypeVar("ChangeT", WriteResult, EditResult, DeleteResult)


class RootedSandbox(Front):
    """Shows a sandbox below a root, and refuses what its rules refuse. What it stands in front of only blocks."""

    def __init__(self, backend: BaseSandbox, policy: dict[str, Any]) -> None:
        """Take the same rules as a policy of the core."""
        super().__init__(backend)
        self._paths = Paths(policy)

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
        """Remove a file, or a directory with all in it."""
        return self._change("delete", file_path, super().delete, lambda why: DeleteResult(error=why))

    def ls(self, path: str) -> LsResult:
        """List a directory."""
        result = self._do("list", path, super().ls, lambda why: LsResult(error=why))
        self._show(result.entries)
        return result

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by name."""
        glob = super().glob
        result = self._do("glob", path or "/", lambda real: glob(pattern, real), lambda why: GlobResult(error=why))
        self._show(result.matches)
        return result

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Find lines that hold a text."""
        grep = super().grep
        if path is None and self._paths.root is None:
            return grep(pattern, None, glob, max_count=max_count)

        def work(real: str) -> GrepResult:
            return grep(pattern, real, glob, max_count=max_count)

        result = self._do("grep", path or "/", work, lambda why: GrepResult(error=why))
        self._show(result.matches)
        return result

    # Forwarded as they are, these would go around what is above.
    aread = BackendProtocol.aread
    awrite = BackendProtocol.awrite
    aedit = BackendProtocol.aedit
    als = BackendProtocol.als
    aglob = BackendProtocol.aglob
    agrep = BackendProtocol.agrep
    aupload_files = BackendProtocol.aupload_files
    adownload_files = BackendProtocol.adownload_files

    async def adelete(self, file_path: str) -> DeleteResult:
        """Remove a file or a directory, as `delete` does."""
        return await asyncio.to_thread(self.delete, file_path)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files; each has its own outcome."""
        return [self._upload(path, content) for path, content in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read whole files; each has its own outcome."""
        return [self._download(path) for path in paths]

    def _upload(self, path: str, content: bytes) -> FileUploadResponse:
        try:
            (done,) = self._backend.upload_files([(self._absolute(path), content)])
        except RefusedError:
            return FileUploadResponse(path=path, error="invalid_path")
        return FileUploadResponse(path=path, error=done.error)

    def _download(self, path: str) -> FileDownloadResponse:
        try:
            (done,) = self._backend.download_files([self._absolute(path)])
        except RefusedError:
            return FileDownloadResponse(path=path, error="invalid_path")
        return FileDownloadResponse(path=path, content=done.content, error=done.error)

    def _absolute(self, path: str) -> str:
        """Where a transferred file is: prefixes don't bind transfers, the root does."""
        if not path.startswith("/"):
            raise RefusedError(path)
        return self._paths.real("download", path)

    def _do(
        self, operation: str, path: str, work: Callable[[str], ResultT], failed: Callable[[str], ResultT]
    ) -> ResultT:
        try:
            return work(self._paths.real(operation, path))
        except RefusedError as refused:
            return failed(str(refused))

    def _change(
        self, operation: str, path: str, work: Callable[[str], ChangeT], failed: Callable[[str], ChangeT]
    ) -> ChangeT:
        result = self._do(operation, path, work, failed)
        return result if result.path is None else dataclasses.replace(result, path=self._paths.public(result.path))

    def _show(self, found: list[FileInfo] | list[GrepMatch] | None) -> None:
        for each in found or []:
            each["path"] = self._paths.public(each["path"])
