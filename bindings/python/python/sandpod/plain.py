"""Sandboxes without LangChain: methods return values and raise exceptions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from sandpod._base import SandboxBase
from sandpod.provider import KubernetesProvider, policy_text

if TYPE_CHECKING:
    from sandpod import _native
    from sandpod.config import KubernetesProviderConfig


@dataclass(frozen=True)
class Executed:
    """The result of a command."""

    output: str
    """Stdout and stderr in the order written."""
    exit_code: int | None
    """124 after a timeout, 125 if the command was not started, None if its outcome is unknown."""
    truncated: bool = False
    notices: tuple[str, ...] = ()
    """Events since the previous call, such as a restart of the guest or the loss of files."""


@dataclass(frozen=True)
class FileEntry:
    """A file or a directory."""

    path: str
    is_dir: bool
    size: int
    modified: datetime


@dataclass(frozen=True)
class FoundFiles:
    """Files that match a pattern."""

    files: list[FileEntry]
    incomplete: str | None = None
    """Why files may be missing: `budget` (the search took too long) or `unreadable` (unreadable directories)."""


@dataclass(frozen=True)
class Match:
    """A line that contains a text."""

    path: str
    line: int
    text: str


@dataclass(frozen=True)
class FoundLines:
    """Lines that contain a text."""

    matches: list[Match]
    truncated: bool = False
    """There are more matches than `max_count`."""


class Sandbox(SandboxBase):
    r"""One sandbox, on Kubernetes or on this machine. Failed operations raise `SandboxError`.

    Every operation has a blocking form and an async form with the prefix `a`. One object may be used by any number of
    threads and event loops.

    If the sandbox lost its files since its last use, by this or another process, the first call reports it: `execute`
    in `notices`; every other call does nothing and raises `SandboxError` with the code `replaced`. To check for a loss
    first, call `notices()`.

    Example:
        >>> from sandpod import KubernetesProviderConfig, Sandbox
        >>> with Sandbox.create(KubernetesProviderConfig(mode="local")) as sandbox:  # doctest: +SKIP
        ...     sandbox.write("/workspace/hello.txt", "hello")
        ...     sandbox.execute("cat hello.txt").output
        'hello'
    """

    def __init__(
        self, native: _native.Sandbox, provider: KubernetesProvider, *, shell_session: str | None = None
    ) -> None:
        """Wrap a sandbox of a provider; use `create` or `connect` instead."""
        super().__init__(native, shell_session=shell_session)
        self._provider = provider

    @classmethod
    def create(  # noqa: PLR0913 - keywords
        cls,
        config: KubernetesProviderConfig,
        *,
        sandbox_id: str | None = None,
        labels: dict[str, str] | None = None,
        ttl_seconds: int | None = None,
        ttl_idle_seconds: int | None = None,
        policy: dict[str, Any] | None = None,
        shell_session: str | None = None,
    ) -> Self:
        """Return the sandbox with this id, or create one; a new sandbox has a new id.

        Args:
            config: The configuration.
            sandbox_id: Id of the sandbox to find.
            labels: Labels of a new sandbox.
            ttl_seconds: TTL of a new sandbox; None: that of the configuration.
            ttl_idle_seconds: Idle TTL of a new sandbox; None: that of the configuration.
            policy: Policy of the sandbox, see docs/policy.md.
            shell_session: Name of a session. Its commands share the working directory, variables and functions.
        """
        provider = KubernetesProvider(config)
        settings = (labels or {}, ttl_seconds, ttl_idle_seconds, policy_text(policy))
        return cls(provider.native().get_or_create(sandbox_id, *settings).wait(), provider, shell_session=shell_session)

    @classmethod
    async def acreate(  # noqa: PLR0913 - keywords
        cls,
        config: KubernetesProviderConfig,
        *,
        sandbox_id: str | None = None,
        labels: dict[str, str] | None = None,
        ttl_seconds: int | None = None,
        ttl_idle_seconds: int | None = None,
        policy: dict[str, Any] | None = None,
        shell_session: str | None = None,
    ) -> Self:
        """Create or find a sandbox, as `create` does."""
        provider = KubernetesProvider(config)
        settings = (labels or {}, ttl_seconds, ttl_idle_seconds, policy_text(policy))
        return cls(await provider.native().get_or_create(sandbox_id, *settings), provider, shell_session=shell_session)

    @classmethod
    def connect(cls, config: KubernetesProviderConfig, sandbox_id: str, *, shell_session: str | None = None) -> Self:
        """Return the sandbox with this id; raise `SandboxNotFoundError` if it does not exist."""
        provider = KubernetesProvider(config)
        return cls(provider.native().reconnect(sandbox_id).wait(), provider, shell_session=shell_session)

    @classmethod
    async def aconnect(
        cls, config: KubernetesProviderConfig, sandbox_id: str, *, shell_session: str | None = None
    ) -> Self:
        """Find a sandbox, as `connect` does."""
        provider = KubernetesProvider(config)
        return cls(await provider.native().reconnect(sandbox_id), provider, shell_session=shell_session)

    def destroy(self) -> None:
        """Delete the sandbox and all its objects, and wait until they are gone."""
        self._provider.delete(sandbox_id=self.id)

    async def adestroy(self) -> None:
        """Delete the sandbox, as `destroy` does."""
        await self._provider.adelete(sandbox_id=self.id)

    def __enter__(self) -> Self:
        """Enter a context that destroys the sandbox at its end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Destroy the sandbox."""
        self.destroy()

    async def __aenter__(self) -> Self:
        """Enter a context that destroys the sandbox at its end."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Destroy the sandbox."""
        await self.adestroy()

    def execute(self, command: str, *, timeout: int | None = None) -> Executed:
        """Run a command line in the sandbox's shell.

        After `timeout` seconds (None: `default_exec_timeout` of the configuration; 0: no timeout), the command and its
        child processes are killed, and the exit code is 124.
        """
        return _executed(self._native.execute(command, timeout, shell_session=self._shell_session).wait())

    async def aexecute(
        self,
        command: str,
        *,
        timeout: int | None = None,  # noqa: ASYNC109 - it is enforced in the sandbox
    ) -> Executed:
        """Run a command line, as `execute` does. Cancelling kills the command."""
        return _executed(await self._native.execute(command, timeout, shell_session=self._shell_session))

    def read(self, path: str) -> bytes:
        """Read a whole file of any size."""
        return self._native.read_bytes(path).wait()

    async def aread(self, path: str) -> bytes:
        """Read a whole file, as `read` does."""
        return await self._native.read_bytes(path)

    def read_text(self, path: str) -> str:
        """Read a whole file as UTF-8."""
        return self.read(path).decode()

    async def aread_text(self, path: str) -> str:
        """Read a whole file, as `read_text` does."""
        return (await self.aread(path)).decode()

    def write(self, path: str, content: bytes | str) -> None:
        """Create or atomically replace a file; missing parent directories are created."""
        self._native.write_bytes(path, _bytes(content)).wait()

    async def awrite(self, path: str, content: bytes | str) -> None:
        """Write a file, as `write` does."""
        await self._native.write_bytes(path, _bytes(content))

    def edit(self, path: str, old: str, new: str, *, replace_all: bool = False) -> int:
        """Replace text in a file and return the number of replacements. Concurrent changes are not lost."""
        return self._native.edit(path, old, new, replace_all=replace_all).wait()

    async def aedit(self, path: str, old: str, new: str, *, replace_all: bool = False) -> int:
        """Replace text in a file, as `edit` does."""
        return await self._native.edit(path, old, new, replace_all=replace_all)

    def delete(self, path: str) -> None:
        """Delete a file, a link, or a directory with its content."""
        self._native.delete(path).wait()

    async def adelete(self, path: str) -> None:
        """Delete a file, as `delete` does."""
        await self._native.delete(path)

    def ls(self, path: str) -> list[FileEntry]:
        """List a directory."""
        return _entries(self._native.list(path).wait())

    async def als(self, path: str) -> list[FileEntry]:
        """List a directory, as `ls` does."""
        return _entries(await self._native.list(path))

    def glob(self, pattern: str, path: str = "/") -> FoundFiles:
        """Find regular files by name below `path`."""
        found = self._native.glob(pattern, path).wait()
        return FoundFiles(_entries(found["matches"]), found["incomplete"])

    async def aglob(self, pattern: str, path: str = "/") -> FoundFiles:
        """Find files by name, as `glob` does."""
        found = await self._native.glob(pattern, path)
        return FoundFiles(_entries(found["matches"]), found["incomplete"])

    def grep(
        self, text: str, path: str | None = None, *, glob: str | None = None, max_count: int | None = None
    ) -> FoundLines:
        """Find lines that contain a literal text, below `path` or the working directory."""
        return _lines(self._native.grep(text, path, glob, max_count).wait())

    async def agrep(
        self, text: str, path: str | None = None, *, glob: str | None = None, max_count: int | None = None
    ) -> FoundLines:
        """Find lines, as `grep` does."""
        return _lines(await self._native.grep(text, path, glob, max_count))


def _executed(executed: _native.Executed) -> Executed:
    return Executed(
        executed["output"], executed["exit_code"], executed["truncated"], notices=tuple(executed["notices"])
    )


def _entries(entries: list[_native.Entry]) -> list[FileEntry]:
    return [
        FileEntry(
            entry["path"],
            entry["is_dir"],
            entry["size"],
            datetime.fromtimestamp(entry["modified_ns"] / 1_000_000_000, UTC),
        )
        for entry in entries
    ]


def _lines(found: _native.Grepped) -> FoundLines:
    return FoundLines([Match(**match) for match in found["matches"]], found["truncated"])


def _bytes(content: bytes | str) -> bytes:
    return content.encode() if isinstance(content, str) else content
