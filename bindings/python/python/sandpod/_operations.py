"""The operations for an agent's tools: the call to the sandbox, and the conversion to Deep Agents' results.

Error texts are those of Deep Agents' own sandboxes, which models know and its middleware compares.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from sandpod import _native
from sandpod._deepagents import (
    EMPTY_CONTENT_WARNING,
    MAX_BINARY_BYTES,
    MAX_OUTPUT_BYTES,
    TRUNCATION_MSG,
    DeleteResult,
    EditResult,
    ExecuteResponse,
    FileData,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GlobResult,
    GrepMatch,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
    normalize_read_bounds,
    read_file_type,
)
from sandpod.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    Tool = Literal["read", "write", "edit", "delete", "list", "glob", "transfer"]
    Files = Sequence[tuple[str, bytes]] | Mapping[str, bytes]

AnswerT = TypeVar("AnswerT")
ResultT = TypeVar("ResultT")

NEVER_STARTED = 125
"""The exit code of a command that was not started."""

_MAX_INT = 2**63 - 1
"""The largest integer of the native module; models also send larger numbers."""

_PAGE_BYTES = MAX_OUTPUT_BYTES - len(TRUNCATION_MSG.encode())


@dataclass(frozen=True)
class Operation(Generic[AnswerT, ResultT]):
    """A call to a sandbox with the conversion of its answer. A failure of the sandbox is a result, not an exception."""

    call: Callable[[_native.Sandbox], _native.Call[AnswerT]]
    answered: Callable[[AnswerT], ResultT]
    failed: Callable[[SandboxError], ResultT]
    written: tuple[str, ...] = ()
    """The files that the operation writes."""

    def wait(self, sandbox: Callable[[], _native.Sandbox]) -> ResultT:
        """Run the operation and block this thread."""
        try:
            answer = self.call(sandbox()).wait()
        except (SandboxError, UnicodeEncodeError) as error:
            return self.failed(_sandbox_error(error))
        return self.answered(answer)

    async def run(self, sandbox: Callable[[], Awaitable[_native.Sandbox]]) -> ResultT:
        """Run the operation on the current event loop."""
        try:
            answer = await self.call(await sandbox())
        except (SandboxError, UnicodeEncodeError) as error:
            return self.failed(_sandbox_error(error))
        return self.answered(answer)


def execute(
    command: str,
    timeout: int | None,
    *,
    shell_session: str | None = None,
    max_output_bytes: int | None = None,
    working_dir: str | None = None,
) -> Operation[_native.Executed, ExecuteResponse]:
    """Run a command line."""
    if timeout is not None and timeout < 0:
        msg = f"timeout is {timeout}, but must be at least 0 (0 waits for ever)"
        raise ValueError(msg)

    def answered(executed: _native.Executed) -> ExecuteResponse:
        notices = "".join(f"[{notice}]\n" for notice in executed["notices"])
        return ExecuteResponse(
            output=notices + executed["output"],
            exit_code=executed["exit_code"],
            truncated=executed["truncated"],
        )

    def failed(error: SandboxError) -> ExecuteResponse:
        return ExecuteResponse(output=str(error), exit_code=_native.exit_code_without_result(error.code))

    limit = None if timeout is None else min(timeout, _MAX_INT)

    def call(sandbox: _native.Sandbox) -> _native.Call[_native.Executed]:
        return sandbox.execute(
            command,
            limit,
            shell_session=shell_session,
            max_output_bytes=max_output_bytes,
            working_dir=working_dir,
        )

    return Operation(call, answered, failed)


def read(path: str, offset: int, limit: int) -> Operation[_native.Text | bytes, ReadResult]:
    """Read a page of a text file, or a small binary file."""
    offset, limit = normalize_read_bounds(offset, limit)
    binary = read_file_type(path) != "text"

    def answered(content: _native.Text | bytes) -> ReadResult:
        if isinstance(content, bytes):
            if not content:
                return _reminder()
            return ReadResult(file_data=FileData(content=base64.b64encode(content).decode(), encoding="base64"))
        try:
            return _page(content, limit)
        except ValueError as error:
            return ReadResult(error=f"File '{path}': unexpected server response: {error}")

    def failed(error: SandboxError) -> ReadResult:
        return ReadResult(error=_text("read", error, path, max_binary_bytes=MAX_BINARY_BYTES))

    max_bytes = MAX_BINARY_BYTES if binary else _PAGE_BYTES
    window = min(offset, _MAX_INT), min(limit, _MAX_INT)
    return Operation(lambda sandbox: sandbox.read(path, *window, max_bytes, binary=binary), answered, failed)


def write(path: str, content: str) -> Operation[None, WriteResult]:
    """Create or replace a file."""

    def failed(error: SandboxError) -> WriteResult:
        return WriteResult(error=_text("write", error, path))

    return Operation(lambda sandbox: sandbox.write(path, content), lambda _: WriteResult(path=path), failed, (path,))


def edit(path: str, old: str, new: str, *, replace_all: bool) -> Operation[int, EditResult]:
    """Replace text in a file."""

    def failed(error: SandboxError) -> EditResult:
        return EditResult(error=_text("edit", error, path, old=old))

    return Operation(
        lambda sandbox: sandbox.edit(path, old, new, replace_all=replace_all),
        lambda count: EditResult(path=path, occurrences=count),
        failed,
    )


def delete(path: str) -> Operation[None, DeleteResult]:
    """Delete a file, a link, or a directory with its content."""

    def failed(error: SandboxError) -> DeleteResult:
        return DeleteResult(error=_text("delete", error, path))

    return Operation(lambda sandbox: sandbox.delete(path), lambda _: DeleteResult(path=path), failed)


def ls(path: str) -> Operation[list[_native.Entry], LsResult]:
    """List a directory."""
    return Operation(
        lambda sandbox: sandbox.list(path),
        lambda entries: LsResult(entries=[_file_info(entry) for entry in entries]),
        lambda error: LsResult(error=_text("list", error, path)),
    )


def glob(pattern: str, path: str | None) -> Operation[_native.Found, GlobResult]:
    """Find files by name."""
    root = path or "/"

    def answered(found: _native.Found) -> GlobResult:
        return GlobResult(
            matches=[_file_info(entry) for entry in found["matches"]],
            truncated=found["incomplete"] is not None,
            truncation_reason=found["incomplete"],
        )

    def failed(error: SandboxError) -> GlobResult:
        return GlobResult(error=_text("glob", error, root))

    return Operation(lambda sandbox: sandbox.glob(pattern, root), answered, failed)


def grep(
    pattern: str, path: str | None, include: str | None, max_count: int | None
) -> Operation[_native.Grepped, GrepResult]:
    """Find lines that contain a text."""

    def answered(found: _native.Grepped) -> GrepResult:
        matches = [GrepMatch(path=match["path"], line=match["line"], text=match["text"]) for match in found["matches"]]
        return GrepResult(matches=matches, truncated=found["truncated"])

    def failed(error: SandboxError) -> GrepResult:
        return GrepResult(error=_text("list", error, path or "."))

    most = None if max_count is None else min(max(max_count, 1), _MAX_INT)
    return Operation(lambda sandbox: sandbox.grep(pattern, path, include, most), answered, failed)


def pairs(files: Files) -> list[tuple[str, bytes]]:
    """Return the paths and contents of files, given as pairs or as a dict."""
    return list(files.items() if isinstance(files, Mapping) else files)


def upload(files: list[tuple[str, bytes]]) -> Operation[list[SandboxError | None], list[FileUploadResponse]]:
    """Write files of any size; each has its own outcome."""
    paths = [path for path, _ in files]

    def answered(outcomes: list[SandboxError | None]) -> list[FileUploadResponse]:
        by_path = zip(paths, outcomes, strict=True)
        return [FileUploadResponse(path=path, error=error and _transfer_error(error)) for path, error in by_path]

    def failed(error: SandboxError) -> list[FileUploadResponse]:
        return [FileUploadResponse(path=path, error=_transfer_error(error)) for path in paths]

    return Operation(lambda sandbox: sandbox.upload(files), answered, failed, tuple(paths))


def download(paths: list[str]) -> Operation[list[bytes | SandboxError], list[FileDownloadResponse]]:
    """Read whole files of any size; each has its own outcome."""

    def answered(outcomes: list[bytes | SandboxError]) -> list[FileDownloadResponse]:
        return [_downloaded(path, outcome) for path, outcome in zip(paths, outcomes, strict=True)]

    def failed(error: SandboxError) -> list[FileDownloadResponse]:
        return [_downloaded(path, error) for path in paths]

    return Operation(lambda sandbox: sandbox.download(paths), answered, failed)


def _sandbox_error(error: SandboxError | UnicodeEncodeError) -> SandboxError:
    if isinstance(error, SandboxError):
        return error
    return SandboxError(f"not valid Unicode text: {error.reason}", "invalid_argument")


def _reminder() -> ReadResult:
    return ReadResult(file_data=FileData(content=EMPTY_CONTENT_WARNING, encoding="utf-8"))


def _page(page: _native.Text, limit: int) -> ReadResult:
    if page["empty_file"]:
        return _reminder()
    if limit == 0:
        return ReadResult(file_data=FileData(content="", encoding="utf-8"), no_lines_requested=True)
    content = page["content"] + (TRUNCATION_MSG if page["truncated"] else "")
    return ReadResult(
        file_data=FileData(content=content, encoding="utf-8"),
        total_lines=page["total_lines"],
        start_line=page["start_line"],
        end_line=page["end_line"],
        next_offset=page["end_line"] if page["more"] else None,
    )


def _downloaded(path: str, outcome: bytes | SandboxError) -> FileDownloadResponse:
    if isinstance(outcome, bytes):
        return FileDownloadResponse(path=path, content=outcome)
    return FileDownloadResponse(path=path, error=_transfer_error(outcome))


def _transfer_error(error: SandboxError) -> str:
    return _text("transfer", error)


def _text(tool: Tool, error: SandboxError, path: str = "", *, old: str = "", max_binary_bytes: int = 0) -> str:
    """The text that Deep Agents' own sandboxes have for the error."""
    message, path, old = _encodable(str(error)), _encodable(path), _encodable(old)
    return _native.tool_error(tool, error.code, message, path, old=old, max_binary_bytes=max_binary_bytes)


def _encodable(text: str) -> str:
    """The same text with a question mark for each character that UTF-8 cannot encode."""
    return text.encode(errors="replace").decode()


def _file_info(entry: _native.Entry) -> FileInfo:
    modified = datetime.fromtimestamp(entry["modified_ns"] / 1_000_000_000, UTC)
    return FileInfo(path=entry["path"], is_dir=entry["is_dir"], size=entry["size"], modified_at=modified.isoformat())
