"""A sandbox that hands every call on to another one: what all wrappers have in common."""

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
    """Does what the sandbox behind it does; a subclass changes what it is there for, and nothing else."""

    _backend: SandboxBackendProtocol

    def _there(self) -> SandboxBackendProtocol:
        """The sandbox that a blocking call is for."""
        return self._backend

    async def _athere(self) -> SandboxBackendProtocol:
        """The sandbox that an awaited call is for."""
        return self._backend

    @property
    def id(self) -> str:
        """The sandbox's own."""
        return self._backend.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command line."""
        return self._there().execute(command, timeout=timeout)

    async def aexecute(
        self,
        command: str,
        *,
        timeout: int | None = None,  # noqa: ASYNC109 - it is the command's
    ) -> ExecuteResponse:
        """Run a command line, as `execute` does."""
        return await (await self._athere()).aexecute(command, timeout=timeout)

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read a page of a file."""
        return self._there().read(file_path, offset, limit)

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read a page of a file, as `read` does."""
        return await (await self._athere()).aread(file_path, offset, limit)

    def write(self, file_path: str, content: str) -> WriteResult:
        """Write a file."""
        return self._there().write(file_path, content)

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """Write a file, as `write` does."""
        return await (await self._athere()).awrite(file_path, content)

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Replace text in a file."""
        return self._there().edit(file_path, old_string, new_string, replace_all)

    async def aedit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Replace text in a file, as `edit` does."""
        return await (await self._athere()).aedit(file_path, old_string, new_string, replace_all)

    def delete(self, file_path: str) -> DeleteResult:
        """Remove a file, or a directory with all in it."""
        return self._there().delete(file_path)

    async def adelete(self, file_path: str) -> DeleteResult:
        """Remove a file, as `delete` does."""
        return await (await self._athere()).adelete(file_path)

    def ls(self, path: str) -> LsResult:
        """List a directory."""
        return self._there().ls(path)

    async def als(self, path: str) -> LsResult:
        """List a directory, as `ls` does."""
        return await (await self._athere()).als(path)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by name."""
        return self._there().glob(pattern, path)

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by name, as `glob` does."""
        return await (await self._athere()).aglob(pattern, path)

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Find lines that hold a text."""
        return self._there().grep(pattern, path, glob, max_count=max_count)

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Find lines that hold a text, as `grep` does."""
        return await (await self._athere()).agrep(pattern, path, glob, max_count=max_count)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files; each has its own outcome."""
        return self._there().upload_files(files)

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files, as `upload_files` does."""
        return await (await self._athere()).aupload_files(files)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read whole files; each has its own outcome."""
        return self._there().download_files(paths)

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read whole files, as `download_files` does."""
        return await (await self._athere()).adownload_files(paths)
