"""The methods of every sandbox, plain or for Deep Agents: streams, background commands, directory transfers."""

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
"""The shell session of an agent's commands: `cd` in one command applies to the next."""


class SandboxBase:
    """One sandbox. These methods raise `SandboxError` when it cannot be reached."""

    def __init__(self, native: _native.Sandbox, *, shell_session: str | None = None) -> None:
        """Wrap a sandbox of a provider.

        Args:
            native: The sandbox.
            shell_session: Name of a session. Its commands share the working directory, exported variables and
                functions. None: every command starts in a new shell.
        """
        self._native = native
        self._shell_session = shell_session

    @property
    def id(self) -> str:
        """The id by which `get_or_create` and `reconnect` find this sandbox."""
        return self._native.id

    def notices(self) -> list[str]:
        """Return unreported events of the sandbox, such as the loss of its files.

        Later calls do not report them again.
        """
        return self._current().take_notices()

    def _current(self) -> _native.Sandbox:
        """Return the sandbox for a blocking call."""
        return self._native

    async def _acurrent(self) -> _native.Sandbox:
        """Return the sandbox for an awaited call."""
        return self._native

    def stream(
        self, command: str, *, timeout: int | None = None, env: dict[str, str] | None = None, cwd: str | None = None
    ) -> Stream:
        """Run a command line and stream its output; iterate with `for` or `async for`.

        Leaving the iteration kills the command. Unlike `execute`, it raises `SandboxError` when the sandbox is lost.

        Example:
            >>> for chunk in sandbox.stream("pip install pandas"):  # doctest: +SKIP
            ...     print(chunk, end="")
        """
        start = _Start(command, timeout, env or {}, cwd, paced=True)

        async def abegin() -> _native.Process:
            return await start.on(await self._acurrent())

        return Stream(lambda: start.on(self._current()).wait(), abegin, owned=True)

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
        """Start a command line in the background.

        Args:
            command: The line for `/bin/sh`.
            timeout: Seconds after which the command is killed; None: no limit.
            env: Additional environment variables.
            cwd: Working directory; None: that of the sandbox.
            stdin: Connect stdin to `Process.write`; otherwise it is empty.
            terminal: Run the command in a terminal of this many rows and columns.
        """
        start = _Start(command, timeout, env or {}, cwd, stdin=stdin, terminal=terminal)
        return Process(start.on(self._current()).wait())

    async def astart(  # noqa: PLR0913 - keywords
        self,
        command: str,
        *,
        timeout: int | None = None,  # noqa: ASYNC109 - it is enforced in the sandbox
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        stdin: bool = False,
        terminal: tuple[int, int] | None = None,
    ) -> Process:
        """Start a command line, as `start` does."""
        start = _Start(command, timeout, env or {}, cwd, stdin=stdin, terminal=terminal)
        return Process(await start.on(await self._acurrent()))

    def processes(self) -> list[ProcessInfo]:
        """List the started commands of all clients, oldest first."""
        return [info_of(info) for info in self._current().processes().wait()]

    async def aprocesses(self) -> list[ProcessInfo]:
        """List the started commands, as `processes` does."""
        return [info_of(info) for info in await (await self._acurrent()).processes()]

    def upload_directory(
        self,
        local_dir: str | PathLike[str],
        path: str,
        *,
        progress: Callable[[TransferProgress], None] | None = None,
    ) -> TransferSummary:
        """Copy the content of a local directory into a directory of the sandbox; existing files are replaced.

        Modes, times and links are kept. `progress` is called from a separate thread.
        """
        return transfer.wait(self._current().upload_tree(local_dir, path), progress)

    async def aupload_directory(
        self,
        local_dir: str | PathLike[str],
        path: str,
        *,
        progress: Callable[[TransferProgress], None] | None = None,
    ) -> TransferSummary:
        """Copy a directory into the sandbox, as `upload_directory` does; `progress` is called on this event loop."""
        return await transfer.run((await self._acurrent()).upload_tree(local_dir, path), progress)

    def download_directory(
        self,
        path: str,
        local_dir: str | PathLike[str],
        *,
        progress: Callable[[TransferProgress], None] | None = None,
    ) -> TransferSummary:
        """Copy the content of a directory of the sandbox into a local directory; existing files are replaced.

        Nothing is written outside the local directory, whatever the sandbox sends.
        """
        return transfer.wait(self._current().download_tree(path, local_dir), progress)

    async def adownload_directory(
        self,
        path: str,
        local_dir: str | PathLike[str],
        *,
        progress: Callable[[TransferProgress], None] | None = None,
    ) -> TransferSummary:
        """Copy a directory from the sandbox, as `download_directory` does."""
        return await transfer.run((await self._acurrent()).download_tree(path, local_dir), progress)


@dataclass(frozen=True)
class _Start:
    """The options of a command to start."""

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
