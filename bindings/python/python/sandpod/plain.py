"""A sandbox as plain Python: no LangChain, values instead of tools' results, and exceptions for what fails."""

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
    """What a command came to."""

    output: str
    """Both outputs in the order written."""
    exit_code: int | None
    """124 if its time was up, 125 if it never started, None if nobody knows what became of it."""
    truncated: bool = False
    notices: tuple[str, ...] = ()
    """What happened to the sandbox since the call before, such as a restart of its guest or the loss of its files."""


@dataclass(frozen=True)
class FileEntry:
    """A file or a directory."""

    path: str
    is_dir: bool
    size: int
    modified: datetime


@dataclass(frozen=True)
class FoundFiles:
    """Files that a pattern names."""

    files: list[FileEntry]
    incomplete: str | None = None
    """Why there may be more: `budget` (it took too long) or `unreadable` (directories that can't be entered)."""


@dataclass(frozen=True)
class Match:
    """A line that holds a text."""

    path: str
    line: int
    text: str


@dataclass(frozen=True)
class FoundLines:
    """Lines that hold a text."""

    matches: list[Match]
    truncated: bool = False
    """There are more than were asked for."""


class Sandbox(SandboxBase):
    r"""One sandbox, on Kubernetes or on this machine. What fails raises `SandboxError` with the reason.

    Every operation has a blocking form and an async one with an `a` before its name. One object serves any number of
    threads and event loops.

    If the sandbox lost its files since it was used last, also by another process, the first call says so: `execute` in
    its `notices`, and every other call raises `SandboxError` with the code `replaced` and does nothing. To
    learn of a loss before any other call, call `notices()` first.

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
        """Wrap a sandbox of a provider; `create` and `connect` make it."""
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
        """Make a sandbox, or find the one of that id; its id differs from the one given if there was none.

        Args:
            config: Where and how it is made.
            sandbox_id: The one to find.
            labels: Written on a new one.
            ttl_seconds: How long a new one lives; None: as the configuration says.
            ttl_idle_seconds: How long it lives unused; None: as the configuration says.
            policy: What may be done in it: docs/policy.md.
            shell_session: Commands of one session find the directory, the variables and the functions of the last.
        """
        provider = KubernetesProvider(config)
        life = (labels or {}, ttl_seconds, ttl_idle_seconds, policy_text(policy))
        return cls(provider.native().get_or_create(sandbox_id, *life).wait(), provider, shell_session=shell_session)

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
        """Make or find a sandbox, as `create` does."""
        provider = KubernetesProvider(config)
        life = (labels or {}, ttl_seconds, ttl_idle_seconds, policy_text(policy))
        return cls(await provider.native().get_or_create(sandbox_id, *life), provider, shell_session=shell_session)

    @classmethod
    def connect(cls, config: KubernetesProviderConfig, sandbox_id: str, *, shell_session: str | None = None) -> Self:
        """Find the sandbox of that id; `SandboxNotFoundError` if it is gone."""
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
        """Remove the sandbox with all that belongs to it, and return when it is gone."""
        self._provider.delete(sandbox_id=self.id)

    async def adestroy(self) -> None:
        """Remove the sandbox, as `destroy` does."""
        await self._provider.adelete(sandbox_id=self.id)

    def __enter__(self) -> Self:
        """Use the sandbox; it is destroyed in the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Destroy the sandbox."""
        self.destroy()

    async def __aenter__(self) -> Self:
        """Use the sandbox; it is destroyed in the end."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Destroy the sandbox."""
        await self.adestroy()

    def execute(self, command: str, *, timeout: int | None = None) -> Executed:
        """Run a command line in the sandbox's shell.

        After `timeout` seconds (None: `default_exec_timeout` of the configuration; 0: never) it is killed with all that
        it started, and the exit code is 124.
        """
        return _executed(self._native.execute(command, timeout, shell_session=self._shell_session).wait())

    async def aexecute(
        self,
        command: str,
        *,
        timeout: int | None = None,  # noqa: ASYNC109 - it is the command's, and kills it in the sandbox
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
        """Create or replace a file, whole or not at all, with the directories above it."""
        self._native.write_bytes(path, _bytes(content)).wait()

    async def awrite(self, path: str, content: bytes | str) -> None:
        """Write a file, as `write` does."""
        await self._native.write_bytes(path, _bytes(content))

    def edit(self, path: str, old: str, new: str, *, replace_all: bool = False) -> int:
        """Replace text in a file, once or wherever it is; return how often. Nobody's change meanwhile is lost."""
        return self._native.edit(path, old, new, replace_all=replace_all).wait()

    async def aedit(self, path: str, old: str, new: str, *, replace_all: bool = False) -> int:
        """Replace text in a file, as `edit` does."""
        return await self._native.edit(path, old, new, replace_all=replace_all)

    def delete(self, path: str) -> None:
        """Remove a file, a link, or a directory with all in it."""
        self._native.delete(path).wait()

    async def adelete(self, path: str) -> None:
        """Remove a file, as `delete` does."""
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
        """Find lines that hold a text, which is no regular expression, below `path` or the working directory."""
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
