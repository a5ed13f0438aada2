"""Commands that go on by themselves, and output as it is written."""

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
    """What a command wrote."""

    data: bytes
    text: str
    """The same as text; a character that is written in two parts is in the second one's."""
    stderr: bool = False
    missing: int = 0
    """Bytes before it that were dropped to keep within bounds."""

    def __str__(self) -> str:
        """Show the text."""
        return self.text


@dataclass(frozen=True)
class ProcessExit:
    """How a command ended."""

    exit_code: int | None
    """128 + the signal that ended it; 124 if its time was up; 125 if it never started; None if nobody knows."""
    timed_out: bool = False
    note: str | None = None
    """Why the sandbox ended it, if it did and not for its time."""


class Stream:
    """A command's output as it is written: iterate over it with `for` or `async for`, once.

    When the iteration is over, `exit` says how the command ended. Leaving it before kills the command, unless the
    stream is of a process that somebody started to go on.
    """

    def __init__(
        self,
        begin: Callable[[], _native.Process],
        abegin: Callable[[], Awaitable[_native.Process]],
        *,
        from_offset: int = 0,
        owned: bool,
    ) -> None:
        """Put a stream together; nothing is sent yet."""
        self._begin = begin
        self._abegin = abegin
        self._from_offset = from_offset
        self._owned = owned
        self._is_overdue = False
        self.exit: ProcessExit | None = None

    @property
    def exit_code(self) -> int | None:
        """The command's exit code, once it has ended and one is known."""
        return self.exit and self.exit.exit_code

    def __iter__(self) -> Iterator[OutputChunk]:
        """Wait for each part of the output."""
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
        """Await each part of the output."""
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
        # The sandbox kills the command at its timeout by itself, so no call has to.
        self._is_overdue = error.code == "deadline_exceeded"


class _Reader:
    """Makes text of what both outputs bring in parts."""

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
    """A started command. It goes on when nobody holds this any more; `processes()` of its sandbox finds it again.

    Its methods raise `SandboxError` when the sandbox can't be reached. Each has an async form, with an `a` before it.
    """

    def __init__(self, native: _native.Process) -> None:
        """Wrap a process that a sandbox started."""
        self._native = native

    @property
    def name(self) -> str:
        """The sandbox's name for it."""
        return self._native.name

    def attach(self, from_offset: int = 0) -> Stream:
        """Follow its output from an offset on, counted over both outputs, to its end. Leaving it ends nothing."""

        async def begin() -> _native.Process:
            return self._native

        return Stream(lambda: self._native, begin, from_offset=from_offset, owned=False)

    def write(self, data: bytes | str) -> None:
        """Write to its standard input, which `stdin=True` or a terminal gave it."""
        self._native.write(_bytes(data)).wait()

    async def awrite(self, data: bytes | str) -> None:
        """Write to its standard input, as `write` does."""
        await self._native.write(_bytes(data))

    def close_stdin(self) -> None:
        """End its standard input; in a terminal, as a user does who types Ctrl-D."""
        self._native.close_stdin().wait()

    async def aclose_stdin(self) -> None:
        """End its standard input, as `close_stdin` does."""
        await self._native.close_stdin()

    def resize(self, rows: int, columns: int) -> None:
        """Tell it that its terminal has another size."""
        self._native.resize(rows, columns).wait()

    async def aresize(self, rows: int, columns: int) -> None:
        """Tell it of another size, as `resize` does."""
        await self._native.resize(rows, columns)

    def signal(self, signal: int) -> None:
        """Send a signal to it and all that it started."""
        self._native.signal(signal).wait()

    async def asignal(self, signal: int) -> None:
        """Send a signal, as `signal` does."""
        await self._native.signal(signal)

    def kill(self) -> None:
        """End it and all that it started, at once."""
        self.signal(SIGKILL)

    async def akill(self) -> None:
        """End it, as `kill` does."""
        await self.asignal(SIGKILL)

    def wait_exit(self) -> ProcessExit:
        """Wait until it has ended."""
        return ProcessExit(**self._native.wait().wait())

    async def await_exit(self) -> ProcessExit:
        """Wait until it has ended, as `wait_exit` does."""
        return ProcessExit(**await self._native.wait())


@dataclass(frozen=True)
class ProcessInfo:
    """A command that somebody has started."""

    process: Process
    command: str
    """What it runs, cut where it is long."""
    pid: int | None
    """Its number in the sandbox, while it runs."""
    started: str
    """When, by the sandbox's clock, in ISO 8601."""
    exit: ProcessExit | None
    """How it ended, if it did."""
    output_end: int
    """Bytes of output so far."""
    terminal: bool


def info_of(info: _native.ProcessInfo) -> ProcessInfo:
    """Make one of what the native half says."""
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
