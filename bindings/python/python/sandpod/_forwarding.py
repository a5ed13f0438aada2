"""The base class of wrappers: a sandbox that forwards every call to another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandpod._deepagents import SandboxBackendProtocol

if TYPE_CHECKING:
    from sandpod._deepagents import (
        DeleteResult,
        EditResult,
        ExecuteResponse,
        FileDownloadResponse,
        FileUploadResponse,
        GlobResult,
        GrepResult,
        LsResult,
        ReadResult,
        WriteResult,
    )


class Forwarding(SandboxBackendProtocol):
    """Forwards every operation to a backend; subclasses override single operations."""

    _backend: SandboxBackendProtocol

    def _target(self) -> SandboxBackendProtocol:
        """Return the sandbox for a blocking call."""
        return self._backend

    async def _atarget(self) -> SandboxBackendProtocol:
        """Return the sandbox for an awaited call."""
        return self._backend

    @property
    def id(self) -> str:
        """The id of the sandbox."""
        return self._backend.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command line."""
        return self._target().execute(command, timeout=timeout)

    async def aexecute(
        self,
        command: str,
        *,
        timeout: int | None = None,  # noqa: ASYNC109 - it is the command's
    ) -> ExecuteResponse:
        """Run a command line, as `execute` does."""
        return await (await self._atarget()).aexecute(command, timeout=timeout)

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read a page of a file."""
        return self._target().read(file_path, offset, limit)

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read a page of a file, as `read` does."""
        return await (await self._atarget()).aread(file_path, offset, limit)

    def write(self, file_path: str, content: str) -> WriteResult:
        """Write a file."""
        return self._target().write(file_path, content)

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """Write a file, as `write` does."""
        return await (await self._atarget()).awrite(file_path, content)

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Replace text in a file."""
        return self._target().edit(file_path, old_string, new_string, replace_all)

    async def aedit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Replace text in a file, as `edit` does."""
        return await (await self._atarget()).aedit(file_path, old_string, new_string, replace_all)

    def delete(self, file_path: str) -> DeleteResult:
        """Delete a file, or a directory with its content."""
        return self._target().delete(file_path)

    async def adelete(self, file_path: str) -> DeleteResult:
        """Delete a file, as `delete` does."""
        return await (await self._atarget()).adelete(file_path)

    def ls(self, path: str) -> LsResult:
        """List a directory."""
        return self._target().ls(path)

    async def als(self, path: str) -> LsResult:
        """List a directory, as `ls` does."""
        return await (await self._atarget()).als(path)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by name."""
        return self._target().glob(pattern, path)

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by name, as `glob` does."""
        return await (await self._atarget()).aglob(pattern, path)

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Find lines that contain a text."""
        return self._target().grep(pattern, path, glob, max_count=max_count)

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Find lines that contain a text, as `grep` does."""
        return await (await self._atarget()).agrep(pattern, path, glob, max_count=max_count)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files; results are per file."""
        return self._target().upload_files(files)

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files, as `upload_files` does."""
        return await (await self._atarget()).aupload_files(files)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read whole files; results are per file."""
        return self._target().download_files(paths)

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read whole files, as `download_files` does."""
        return await (await self._atarget()).adownload_files(paths)
