"""Background commands and streamed output."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from datetime import UTC, datetime
from signal import SIGKILL
from typing import TYPE_CHECKING

from sandpod.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from sandpod import _native


@dataclass(frozen=True)
class OutputChunk:
    """A chunk of a command's output."""

    data: bytes
    text: str
    """The data as text; a character split over two chunks is in the second one."""
    stderr: bool = False
    missing: int = 0
    """Bytes before this chunk that were discarded because of the output limit."""

    def __str__(self) -> str:
        """Return the text."""
        return self.text


@dataclass(frozen=True)
class ProcessExit:
    """The end of a command."""

    exit_code: int | None
    """128 + the signal that ended it; 124 after a timeout; 125 if it was not started; None if unknown."""
    timed_out: bool = False
    note: str | None = None
    """Why the sandbox ended the command, other than by its timeout."""


class Stream:
    """The output of a command as a stream: iterate once, with `for` or `async for`.

    After the iteration, `exit` holds the end of the command. Leaving the iteration early kills the command, unless the
    stream belongs to a background process.
    """

    def __init__(
        self,
        begin: Callable[[], _native.Process],
        abegin: Callable[[], Awaitable[_native.Process]],
        *,
        from_offset: int = 0,
        owned: bool,
    ) -> None:
        """Create a stream; the command starts with the iteration."""
        self._begin = begin
        self._abegin = abegin
        self._from_offset = from_offset
        self._owned = owned
        self._is_overdue = False
        self.exit: ProcessExit | None = None

    @property
    def exit_code(self) -> int | None:
        """The exit code of the command, once it is known."""
        return self.exit and self.exit.exit_code

    def __iter__(self) -> Iterator[OutputChunk]:
        """Yield chunks of the output."""
        process = self._begin()
        reader = _Reader()
        try:
            output = process.attach(self._from_offset)
            while (event := output.next().wait()) is not None:
                if chunk := self._take(reader, event):
                    yield chunk
        except SandboxError as error:
            self._note(error)
            raise
        finally:
            if self._left_early():
                process.signal(SIGKILL).wait()

    async def __aiter__(self) -> AsyncIterator[OutputChunk]:
        """Yield chunks of the output."""
        process = await self._abegin()
        reader = _Reader()
        try:
            output = process.attach(self._from_offset)
            while (event := await output.next()) is not None:
                if chunk := self._take(reader, event):
                    yield chunk
        except SandboxError as error:
            self._note(error)
            raise
        finally:
            if self._left_early():
                await process.signal(SIGKILL)

    def _take(self, reader: _Reader, event: _native.Written | _native.Missing | _native.Exit) -> OutputChunk | None:
        if "exit_code" in event:
            self.exit = ProcessExit(**event)
            return None
        return reader.chunk(event)

    def _left_early(self) -> bool:
        return self._owned and self.exit is None and not self._is_overdue

    def _note(self, error: SandboxError) -> None:
        # The guest kills the command at its timeout; no signal is needed.
        self._is_overdue = error.code == "deadline_exceeded"


class _Reader:
    """Decodes the chunks of stdout and stderr."""

    def __init__(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {False: decoder("replace"), True: decoder("replace")}
        self._missing = 0

    def chunk(self, event: _native.Written | _native.Missing) -> OutputChunk | None:
        if "missing_until" in event:
            self._missing += event["missing_until"] - event["missing_from"]
            return None
        text = self._decoders[event["stderr"]].decode(event["data"])
        missing, self._missing = self._missing, 0
        return OutputChunk(event["data"], text, event["stderr"], missing)


class Process:
    """A background command. It continues without this object; `processes()` of its sandbox finds it again.

    The methods raise `SandboxError` when the sandbox cannot be reached. Each has an async form with the prefix `a`.
    """

    def __init__(self, native: _native.Process) -> None:
        """Wrap a process of a sandbox."""
        self._native = native

    @property
    def name(self) -> str:
        """The name of the process in its sandbox."""
        return self._native.name

    def attach(self, from_offset: int = 0) -> Stream:
        """Stream the output from an offset over stdout and stderr. Leaving the iteration does not kill the command."""

        async def begin() -> _native.Process:
            return self._native

        return Stream(lambda: self._native, begin, from_offset=from_offset, owned=False)

    def write(self, data: bytes | str) -> None:
        """Write to stdin; requires `stdin=True` or a terminal."""
        self._native.write(_bytes(data)).wait()

    async def awrite(self, data: bytes | str) -> None:
        """Write to stdin, as `write` does."""
        await self._native.write(_bytes(data))

    def close_stdin(self) -> None:
        """Close stdin; in a terminal, send Ctrl-D."""
        self._native.close_stdin().wait()

    async def aclose_stdin(self) -> None:
        """Close stdin, as `close_stdin` does."""
        await self._native.close_stdin()

    def resize(self, rows: int, columns: int) -> None:
        """Resize the terminal."""
        self._native.resize(rows, columns).wait()

    async def aresize(self, rows: int, columns: int) -> None:
        """Resize the terminal, as `resize` does."""
        await self._native.resize(rows, columns)

    def signal(self, signal: int) -> None:
        """Send a signal to the command and its child processes."""
        self._native.signal(signal).wait()

    async def asignal(self, signal: int) -> None:
        """Send a signal, as `signal` does."""
        await self._native.signal(signal)

    def kill(self) -> None:
        """Kill the command and its child processes."""
        self.signal(SIGKILL)

    async def akill(self) -> None:
        """Kill the command, as `kill` does."""
        await self.asignal(SIGKILL)

    def wait_exit(self) -> ProcessExit:
        """Wait until the command has ended."""
        return ProcessExit(**self._native.wait().wait())

    async def await_exit(self) -> ProcessExit:
        """Wait until the command has ended, as `wait_exit` does."""
        return ProcessExit(**await self._native.wait())


@dataclass(frozen=True)
class ProcessInfo:
    """A started command."""

    process: Process
    command: str
    """The command line, truncated if it is long."""
    pid: int | None
    """The process id in the sandbox, while the command runs."""
    started: str
    """The start time by the sandbox's clock, in ISO 8601."""
    exit: ProcessExit | None
    """The end of the command; None while it runs."""
    output_end: int
    """Bytes of output so far."""
    terminal: bool


def info_of(info: _native.ProcessInfo) -> ProcessInfo:
    """Convert the native type."""
    ended = info["exit"]
    return ProcessInfo(
        process=Process(info["process"]),
        command=info["command"],
        pid=info["pid"],
        started=datetime.fromtimestamp(info["started"], UTC).isoformat(),
        exit=None if ended is None else ProcessExit(**ended),
        output_end=info["output_end"],
        terminal=info["terminal"],
    )


def _bytes(data: bytes | str) -> bytes:
    return data.encode() if isinstance(data, str) else data
