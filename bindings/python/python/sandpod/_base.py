"""What every sandbox has, plain or for Deep Agents: output as it is written, commands that go on, whole directories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandpod import transfer
from sandpod.process import Process, ProcessInfo, Stream, info_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from sandpod import _native
    from sandpod.transfer import TransferProgress, TransferSummary

AGENT_SESSION = "agent"
"""The shell session of an agent's commands: a `cd` of one is there in the next."""


class SandboxBase:
    """One sandbox. These methods raise `SandboxError` when it can't be reached."""

    def __init__(self, native: _native.Sandbox, *, shell_session: str | None = None) -> None:
        """Wrap a sandbox that a provider made.

        Args:
            native: The sandbox.
            shell_session: Commands that share a session find the directory, the exported variables and the functions
                that the one before left behind. None: each begins afresh.
        """
        self._native = native
        self._shell_session = shell_session

    @property
    def id(self) -> str:
        """The name to find this sandbox by again, with `get_or_create` or `reconnect`."""
        return self._native.id

    def notices(self) -> list[str]:
        """Return what happened to the sandbox that no call has reported yet, such as the loss of its files.

        After that no call reports it.
        """
        return self._here().take_notices()

    def _here(self) -> _native.Sandbox:
        """The sandbox that a blocking call is for."""
        return self._native

    async def _ahere(self) -> _native.Sandbox:
        """The sandbox that an awaited call is for."""
        return self._native

    def stream(
        self, command: str, *, timeout: int | None = None, env: dict[str, str] | None = None, cwd: str | None = None
    ) -> Stream:
        """Run a command line and hand out its output as it is written; iterate with `for` or `async for`.

        Leaving the iteration kills the command. Unlike `execute`, it raises `SandboxError` when the sandbox is lost.

        Example:
            >>> for chunk in sandbox.stream("pip install pandas"):  # doctest: +SKIP
            ...     print(chunk, end="")
        """
        start = _Start(command, timeout, env or {}, cwd, paced=True)

        async def abegin() -> _native.Process:
            return await start.on(await self._ahere())

        return Stream(lambda: start.on(self._here()).wait(), abegin, owned=True)

    def start(  # noqa: PLR0913 - keywords
        self,
        command: str,
        *,
        timeout: int | None = None,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        stdin: bool = False,
        terminal: tuple[int, int] | None = None,
    ) -> Process:
        """Start a command line that goes on by itself, and don't wait for it.

        Args:
            command: The line for `/bin/sh`.
            timeout: Seconds that it may take; None: as long as it likes.
            env: Variables beside the sandbox's own.
            cwd: Where it runs, if not in the sandbox's own directory.
            stdin: It reads what `Process.write` writes; otherwise its input is empty.
            terminal: It runs in a terminal of so many rows and columns.
        """
        start = _Start(command, timeout, env or {}, cwd, stdin=stdin, terminal=terminal)
        return Process(start.on(self._here()).wait())

    async def astart(  # noqa: PLR0913 - keywords
        self,
        command: str,
        *,
        timeout: int | None = None,  # noqa: ASYNC109 - it is the command's, and kills it in the sandbox
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        stdin: bool = False,
        terminal: tuple[int, int] | None = None,
    ) -> Process:
        """Start a command line, as `start` does."""
        start = _Start(command, timeout, env or {}, cwd, stdin=stdin, terminal=terminal)
        return Process(await start.on(await self._ahere()))

    def processes(self) -> list[ProcessInfo]:
        """List the commands that were started, by whichever client, oldest first."""
        return [info_of(info) for info in self._here().processes().wait()]

    async def aprocesses(self) -> list[ProcessInfo]:
        """List the commands that were started, as `processes` does."""
        return [info_of(info) for info in await (await self._ahere()).processes()]

    def upload_directory(
        self,
        local_dir: str | PathLike[str],
        path: str,
        *,
        progress: Callable[[TransferProgress], None] | None = None,
    ) -> TransferSummary:
        """Copy all that is in a directory of this machine into one of the sandbox, over what is there.

        Modes, times and links are kept. `progress` is called now and then, from a thread of its own.
        """
        return transfer.wait(self._here().upload_tree(local_dir, path), progress)

    async def aupload_directory(
        self,
        local_dir: str | PathLike[str],
        path: str,
        *,
        progress: Callable[[TransferProgress], None] | None = None,
    ) -> TransferSummary:
        """Copy a directory into the sandbox, as `upload_directory` does; `progress` is called on this event loop."""
        return await transfer.run((await self._ahere()).upload_tree(local_dir, path), progress)

    def download_directory(
        self,
        path: str,
        local_dir: str | PathLike[str],
        *,
        progress: Callable[[TransferProgress], None] | None = None,
    ) -> TransferSummary:
        """Copy all that is in a directory of the sandbox into one of this machine, over what is there.

        Nothing is written outside of it, whatever the sandbox sends.
        """
        return transfer.wait(self._here().download_tree(path, local_dir), progress)

    async def adownload_directory(
        self,
        path: str,
        local_dir: str | PathLike[str],
        *,
        progress: Callable[[TransferProgress], None] | None = None,
    ) -> TransferSummary:
        """Copy a directory from the sandbox, as `download_directory` does."""
        return await transfer.run((await self._ahere()).download_tree(path, local_dir), progress)


@dataclass(frozen=True)
class _Start:
    """How a command is started."""

    command: str
    timeout: int | None
    env: dict[str, str]
    cwd: str | None
    stdin: bool = False
    paced: bool = False
    terminal: tuple[int, int] | None = None

    def on(self, sandbox: _native.Sandbox) -> _native.Call[_native.Process]:
        return sandbox.start(
            self.command,
            self.timeout,
            env=self.env,
            working_dir=self.cwd,
            stdin=self.stdin,
            combined=False,
            paced=self.paced,
            terminal=self.terminal,
        )
