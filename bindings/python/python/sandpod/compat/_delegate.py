"""A sandbox in front of another one, with paths and rules of its own where the other one has none."""

from __future__ import annotations

import dataclasses
import json
import posixpath
from typing import TYPE_CHECKING, Any, TypeVar

from sandpod import _native
from sandpod._deepagents import (
    BaseSandbox,
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
from sandpod.compat._older import OlderNames

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sandpod._deepagents import ExecuteOffloadResult, ExecuteResponse

ResultT = TypeVar("ResultT")


class RefusedError(Exception):
    """A path that can't be used; the message is what the caller gets."""


class Paths:
    """How paths are seen, and which may be written: what this package's own sandboxes do by their policy."""

    def __init__(self, policy: dict[str, Any]) -> None:
        """Take the same rules as a policy of the core."""
        self._root: str | None = policy.get("root_dir")
        self._refuse_parents = policy.get("traversal") == "refuse"
        self._accept_real: bool = policy.get("accept_real_paths", False)
        self._rules = _native.Policy(json.dumps({**policy, "root_dir": None}))

    def real(self, operation: str, path: str) -> str:
        """The path in the sandbox; one that leads out of the root, or may not be written, is refused."""
        real = self._below_root(path)
        if refusal := self._rules.refusal(operation, real):
            raise RefusedError(refusal)
        return real

    def public(self, path: str) -> str:
        """The path as callers see it."""
        if self._root is None or not _is_below(path, self._root):
            return path
        return "/" + posixpath.relpath(path, self._root).removeprefix(".")

    def start(self, path: str | None) -> str | None:
        """Where a search begins that names no path."""
        return "/" if path is None and self._root is not None else path

    def _below_root(self, path: str) -> str:
        if self._root is None:
            return path
        if self._refuse_parents and (path.startswith("~") or ".." in path.split("/")):
            msg = f"Path traversal not allowed: '{path}'"
            raise RefusedError(msg)
        meant = posixpath.normpath(path if path.startswith("/") else f"/{path}")
        if self._accept_real and _is_below(meant, self._root):
            return meant
        if ".." in path.split("/") and not _is_below(posixpath.normpath(f"{self._root}/{path}"), self._root):
            msg = f"Path '{path}' escapes root_dir '{self._root}'"
            raise RefusedError(msg)
        return posixpath.normpath(f"{self._root}/{path}")


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


class Delegate(OlderNames, BaseSandbox):
    """Does what the other sandbox does. `paths` is for one that has no policy of its own."""

    def __init__(self, inner: BaseSandbox, paths: Paths | None) -> None:
        """Stand in front of `inner`."""
        self._inner = inner
        self._paths = paths

    @property
    def id(self) -> str:
        """The sandbox's own."""
        return self._inner.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command line."""
        return self._inner.execute(command, timeout=timeout)

    async def aexecute(
        self,
        command: str,
        *,
        timeout: int | None = None,  # noqa: ASYNC109 - it is the command's
    ) -> ExecuteResponse:
        """Run a command line, as `execute` does."""
        return await self._inner.aexecute(command, timeout=timeout)

    def execute_with_offload(self, command: str, capture_path: str, **options: Any) -> ExecuteOffloadResult:
        """Run a command line, and keep a long output in a file where the sandbox can."""
        return self._inner.execute_with_offload(command, self._real("write", capture_path), **options)

    async def aexecute_with_offload(self, command: str, capture_path: str, **options: Any) -> ExecuteOffloadResult:
        """Run a command line, as `execute_with_offload` does."""
        return await self._inner.aexecute_with_offload(command, self._real("write", capture_path), **options)

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read a page of a file."""
        return self._do("read", file_path, lambda path: self._inner.read(path, offset, limit), _failed_read)

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read a page of a file, as `read` does."""
        return await self._ado("read", file_path, lambda path: self._inner.aread(path, offset, limit), _failed_read)

    def write(self, file_path: str, content: str) -> WriteResult:
        """Write a file."""
        result = self._do("write", file_path, lambda path: self._inner.write(path, content), _failed_write)
        return self._shown(result)

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """Write a file, as `write` does."""
        work = self._ado("write", file_path, lambda path: self._inner.awrite(path, content), _failed_write)
        return self._shown(await work)

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Replace text in a file."""
        edit = self._inner.edit
        work = self._do("edit", file_path, lambda path: edit(path, old_string, new_string, replace_all), _failed_edit)
        return self._shown(work)

    async def aedit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Replace text in a file, as `edit` does."""
        edit = self._inner.aedit
        work = self._ado("edit", file_path, lambda path: edit(path, old_string, new_string, replace_all), _failed_edit)
        return self._shown(await work)

    def delete(self, file_path: str) -> DeleteResult:
        """Remove a file, or a directory with all in it."""
        return self._shown(self._do("delete", file_path, self._inner.delete, lambda why: DeleteResult(error=why)))

    async def adelete(self, file_path: str) -> DeleteResult:
        """Remove a file, as `delete` does."""
        work = self._ado("delete", file_path, self._inner.adelete, lambda why: DeleteResult(error=why))
        return self._shown(await work)

    def ls(self, path: str) -> LsResult:
        """List a directory."""
        return self._listed(self._do("list", path, self._inner.ls, lambda why: LsResult(error=why)))

    async def als(self, path: str) -> LsResult:
        """List a directory, as `ls` does."""
        return self._listed(await self._ado("list", path, self._inner.als, lambda why: LsResult(error=why)))

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by name."""
        start = self._start(path) or "/"
        found = self._do("glob", start, lambda real: self._inner.glob(pattern, real), _failed_glob)
        return self._found(found)

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by name, as `glob` does."""
        start = self._start(path) or "/"
        found = self._ado("glob", start, lambda real: self._inner.aglob(pattern, real), _failed_glob)
        return self._found(await found)

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Find lines that hold a text."""
        if (start := self._start(path)) is None:
            return self._inner.grep(pattern, None, glob, max_count=max_count)
        grep = self._inner.grep
        found = self._do("grep", start, lambda real: grep(pattern, real, glob, max_count=max_count), _failed_grep)
        return self._grepped(found)

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Find lines, as `grep` does."""
        if (start := self._start(path)) is None:
            return await self._inner.agrep(pattern, None, glob, max_count=max_count)
        grep = self._inner.agrep
        found = self._ado("grep", start, lambda real: grep(pattern, real, glob, max_count=max_count), _failed_grep)
        return self._grepped(await found)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files; each has its own outcome."""
        return (
            [self._upload(path, content) for path, content in files] if self._paths else self._inner.upload_files(files)
        )

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files, as `upload_files` does."""
        if self._paths:
            return await super().aupload_files(files)
        return await self._inner.aupload_files(files)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read whole files; each has its own outcome."""
        return [self._download(path) for path in paths] if self._paths else self._inner.download_files(paths)

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read whole files, as `download_files` does."""
        if self._paths:
            return await super().adownload_files(paths)
        return await self._inner.adownload_files(paths)

    def _upload(self, path: str, content: bytes) -> FileUploadResponse:
        try:
            (done,) = self._inner.upload_files([(self._absolute(path), content)])
        except RefusedError:
            return FileUploadResponse(path=path, error="invalid_path")
        return FileUploadResponse(path=path, error=done.error)

    def _download(self, path: str) -> FileDownloadResponse:
        try:
            (done,) = self._inner.download_files([self._absolute(path)])
        except RefusedError:
            return FileDownloadResponse(path=path, error="invalid_path")
        return FileDownloadResponse(path=path, content=done.content, error=done.error)

    def _absolute(self, path: str) -> str:
        """Where a transferred file is: prefixes don't bind transfers, the root does."""
        if not path.startswith("/"):
            raise RefusedError(path)
        return self._real("download", path)

    def _real(self, operation: str, path: str) -> str:
        return self._paths.real(operation, path) if self._paths else path

    def _start(self, path: str | None) -> str | None:
        return self._paths.start(path) if self._paths else path

    def _do(
        self, operation: str, path: str, work: Callable[[str], ResultT], failed: Callable[[str], ResultT]
    ) -> ResultT:
        try:
            return work(self._real(operation, path))
        except RefusedError as refused:
            return failed(str(refused))

    async def _ado(
        self, operation: str, path: str, work: Callable[[str], Awaitable[ResultT]], failed: Callable[[str], ResultT]
    ) -> ResultT:
        try:
            return await work(self._real(operation, path))
        except RefusedError as refused:
            return failed(str(refused))

    def _public(self, path: str) -> str:
        return self._paths.public(path) if self._paths else path

    def _shown(self, result: ChangeT) -> ChangeT:
        if result.path is None:
            return result
        return dataclasses.replace(result, path=self._public(result.path))

    def _listed(self, result: LsResult) -> LsResult:
        for entry in result.entries or []:
            entry["path"] = self._public(entry["path"])
        return result

    def _found(self, result: GlobResult) -> GlobResult:
        for entry in result.matches or []:
            entry["path"] = self._public(entry["path"])
        return result

    def _grepped(self, result: GrepResult) -> GrepResult:
        for match in result.matches or []:
            match["path"] = self._public(match["path"])
        return result


ChangeT = TypeVar("ChangeT", WriteResult, EditResult, DeleteResult)


def _failed_read(why: str) -> ReadResult:
    return ReadResult(error=why)


def _failed_write(why: str) -> WriteResult:
    return WriteResult(error=why)


def _failed_edit(why: str) -> EditResult:
    return EditResult(error=why)


def _failed_glob(why: str) -> GlobResult:
    return GlobResult(error=why)


def _failed_grep(why: str) -> GrepResult:
    return GrepResult(error=why)
