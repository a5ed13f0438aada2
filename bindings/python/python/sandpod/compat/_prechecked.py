"""A backend that checks paths before the sandbox exists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandpod._deepagents import DeleteResult, EditResult, GlobResult, GrepResult, LsResult, ReadResult, WriteResult
from sandpod.compat._paths import RefusedError
from sandpod.compat._wrapper import Wrapper

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandpod._deepagents import BaseSandbox
    from sandpod.compat._paths import Paths


class PrecheckedSandbox(Wrapper):
    """Rejects paths by the rules of `Paths`, without creating or connecting to a sandbox.

    The wrapped sandbox has the same rules and also resolves links.
    """

    def __init__(self, backend: BaseSandbox, paths: Paths) -> None:
        """Wrap a backend."""
        super().__init__(backend)
        self._seen = paths

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read a page of a file."""
        return self._refused(ReadResult, "read", file_path) or super().read(file_path, offset, limit)

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read a page of a file, as `read` does."""
        return self._refused(ReadResult, "read", file_path) or await super().aread(file_path, offset, limit)

    def write(self, file_path: str, content: str) -> WriteResult:
        """Write a file."""
        return self._refused(WriteResult, "write", file_path) or super().write(file_path, content)

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """Write a file, as `write` does."""
        return self._refused(WriteResult, "write", file_path) or await super().awrite(file_path, content)

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Replace text in a file."""
        refused = self._refused(EditResult, "edit", file_path)
        return refused or super().edit(file_path, old_string, new_string, replace_all)

    async def aedit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Replace text in a file, as `edit` does."""
        refused = self._refused(EditResult, "edit", file_path)
        return refused or await super().aedit(file_path, old_string, new_string, replace_all)

    def delete(self, file_path: str) -> DeleteResult:
        """Delete a file, or a directory with its content."""
        return self._refused(DeleteResult, "delete", file_path) or super().delete(file_path)

    async def adelete(self, file_path: str) -> DeleteResult:
        """Delete a file, as `delete` does."""
        return self._refused(DeleteResult, "delete", file_path) or await super().adelete(file_path)

    def ls(self, path: str) -> LsResult:
        """List a directory."""
        return self._refused(LsResult, "list", path) or super().ls(path)

    async def als(self, path: str) -> LsResult:
        """List a directory, as `ls` does."""
        return self._refused(LsResult, "list", path) or await super().als(path)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by name."""
        return self._refused(GlobResult, "glob", path, pattern) or super().glob(pattern, path)

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by name, as `glob` does."""
        return self._refused(GlobResult, "glob", path, pattern) or await super().aglob(pattern, path)

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Find lines that contain a text."""
        return self._refused(GrepResult, "grep", path) or super().grep(pattern, path, glob, max_count=max_count)

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Find lines, as `grep` does."""
        refused = self._refused(GrepResult, "grep", path)
        return refused or await super().agrep(pattern, path, glob, max_count=max_count)

    def _refused(self, result: Callable[..., Any], operation: str, path: str | None, pattern: str = "") -> Any:
        """Return the result for a rejected path or pattern; None if it is accepted."""
        try:
            self._seen.check(pattern)
            if path is not None:
                self._seen.real(operation, path)
        except RefusedError as refused:
            return result(error=str(refused))
        return None
