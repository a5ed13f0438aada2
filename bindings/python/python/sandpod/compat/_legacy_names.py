"""The file operations of Deep Agents before 0.7, with their results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandpod._deepagents import BackendProtocol

if TYPE_CHECKING:
    from sandpod._deepagents import FileInfo, GrepMatch, GrepResult


class LegacyNames(BackendProtocol):
    """Adds `ls_info`, `glob_info` and `grep_raw`. A failed listing is empty; a failed search is a message."""

    def ls_info(self, path: str) -> list[FileInfo]:
        """List a directory."""
        return self.ls(path).entries or []

    async def als_info(self, path: str) -> list[FileInfo]:
        """List a directory, as `ls_info` does."""
        return (await self.als(path)).entries or []

    def glob_info(self, pattern: str, path: str = "/") -> list[FileInfo]:
        """Find files by name."""
        return self.glob(pattern, path).matches or []

    async def aglob_info(self, pattern: str, path: str = "/") -> list[FileInfo]:
        """Find files by name, as `glob_info` does."""
        return (await self.aglob(pattern, path)).matches or []

    def grep_raw(self, pattern: str, path: str | None = None, glob: str | None = None) -> list[GrepMatch] | str:
        """Find lines that contain a text."""
        return _grepped(self.grep(pattern, path, glob), path)

    async def agrep_raw(self, pattern: str, path: str | None = None, glob: str | None = None) -> list[GrepMatch] | str:
        """Find lines, as `grep_raw` does."""
        return _grepped(await self.agrep(pattern, path, glob), path)


def _grepped(result: GrepResult, path: str | None) -> list[GrepMatch] | str:
    if result.error is None:
        return result.matches or []
    if result.error.endswith("path_not_found"):
        return f"Error: Path '{path}' not found"
    return f"Error: {result.error}"
