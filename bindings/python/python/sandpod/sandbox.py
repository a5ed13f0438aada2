"""A sandbox as Deep Agents' tools use it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from deepagents.backends.sandbox import BaseSandbox

from sandpod import _operations

if TYPE_CHECKING:
    from deepagents.backends.protocol import (
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

    from sandpod import _native


class KubernetesSandbox(BaseSandbox):
    """One sandbox. A `KubernetesProvider` makes it.

    Every operation is done by the guest in the sandbox, so the image needs no Python and no GNU tools. Each has a
    blocking and an async form; one object serves any number of threads and event loops. Whatever befalls the sandbox
    comes back in the result: only wrong arguments raise.
    """

    def __init__(self, native: _native.Sandbox) -> None:
        """Wrap a sandbox that a provider made."""
        self._native = native

    @property
    def id(self) -> str:
        """The name to find this sandbox by again, with `get_or_create` or `reconnect`."""
        return self._native.id

    def narrowed(self, policy: dict[str, Any]) -> KubernetesSandbox:
        """Give the same sandbox under one more policy, which only narrows what it has: docs/policy.md."""
        return KubernetesSandbox(self._native.narrowed(json.dumps(policy)))

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command line in the sandbox's shell.

        Args:
            command: The line, of any length, for `/bin/sh`.
            timeout: Seconds that it may take; None: `default_exec_timeout` of the configuration; 0: for ever. When they
                are over, the command and all it started are killed, and the exit code is 124.

        Returns:
            Both outputs in the order written, and the exit code: 125 if the command never started, None if nobody
            knows what became of it.
        """
        return _operations.execute(self._native, command, timeout).wait()

    async def aexecute(
        self,
        command: str,
        *,
        timeout: int | None = None,  # noqa: ASYNC109 - it is the command's, and kills it in the sandbox
    ) -> ExecuteResponse:
        """Run a command line, as `execute` does. Cancelling kills the command."""
        return await _operations.execute(self._native, command, timeout).run()

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read `limit` lines of a text file from line `offset` on (the first is 0), or a binary file as base64."""
        return _operations.read(self._native, file_path, offset, limit).wait()

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read a file, as `read` does."""
        return await _operations.read(self._native, file_path, offset, limit).run()

    def write(self, file_path: str, content: str) -> WriteResult:
        """Create or replace a file, whole or not at all, with the directories above it."""
        return _operations.write(self._native, file_path, content).wait()

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """Write a file, as `write` does."""
        return await _operations.write(self._native, file_path, content).run()

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Replace text in a file. A change that somebody else makes meanwhile is not lost."""
        return _operations.edit(self._native, file_path, old_string, new_string, replace_all=replace_all).wait()

    async def aedit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Edit a file, as `edit` does."""
        return await _operations.edit(self._native, file_path, old_string, new_string, replace_all=replace_all).run()

    def delete(self, file_path: str) -> DeleteResult:
        """Remove a file, a link, or a directory with all in it."""
        return _operations.delete(self._native, file_path).wait()

    async def adelete(self, file_path: str) -> DeleteResult:
        """Remove a file, as `delete` does."""
        return await _operations.delete(self._native, file_path).run()

    def ls(self, path: str) -> LsResult:
        """List a directory, with sizes and times."""
        return _operations.ls(self._native, path).wait()

    async def als(self, path: str) -> LsResult:
        """List a directory, as `ls` does."""
        return await _operations.ls(self._native, path).run()

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find regular files by name below `path`, or below `/`. The paths found are absolute."""
        return _operations.glob(self._native, pattern, path).wait()

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by name, as `glob` does."""
        return await _operations.glob(self._native, pattern, path).run()

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Find lines that hold a text, which is no regular expression, below `path` or the working directory."""
        return _operations.grep(self._native, pattern, path, glob, max_count).wait()

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Find lines, as `grep` does."""
        return await _operations.grep(self._native, pattern, path, glob, max_count).run()

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files of any size; each has its own outcome, in the order given."""
        return _operations.upload(self._native, files).wait()

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files, as `upload_files` does."""
        return await _operations.upload(self._native, files).run()

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read whole files of any size; each has its own outcome, in the order given."""
        return _operations.download(self._native, paths).wait()

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read whole files, as `download_files` does."""
        return await _operations.download(self._native, paths).run()
