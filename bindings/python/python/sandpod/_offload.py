"""What is shown of an output that is too long to be shown, and lies in a file of the sandbox instead."""

from __future__ import annotations

from sandpod._deepagents import ExecuteOffloadResult, ExecuteResponse

_MAX_BYTES = 7 << 20
"""What the guest keeps of one output at most."""
_MAX_INLINE_BYTES = 1 << 20
"""What is returned of one output at most, as by `execute`."""
_LINES = 5
_BYTES = 2000


def limit(max_capture_bytes: int | None) -> int:
    """Return how many bytes of an output are kept for its file."""
    return min(max_capture_bytes or _MAX_BYTES, _MAX_BYTES)


def to_capture(response: ExecuteResponse, max_inline_bytes: int) -> bytes | None:
    """Return the output that belongs into a file, if it is so long."""
    content = response.output.encode()
    return content if len(content) > max_inline_bytes else None


def inline(response: ExecuteResponse) -> ExecuteOffloadResult:
    """Return an output that is in no file, cut where no conversation could take it."""
    content = response.output.encode()
    if len(content) > _MAX_INLINE_BYTES:
        text = content[:_MAX_INLINE_BYTES].decode(errors="ignore")
        response = ExecuteResponse(output=text, exit_code=response.exit_code, truncated=True)
    return ExecuteOffloadResult(offloaded=False, response=response)


def preview(response: ExecuteResponse, content: bytes) -> ExecuteOffloadResult:
    """Show the first and the last lines of a captured output."""
    lines = content.splitlines(keepends=True)
    omitted = len(lines) - 2 * _LINES
    if omitted > 0:
        head, tail = b"".join(lines[:_LINES]), b"".join(lines[-_LINES:])
        shown = f"{_text(head[:_BYTES])}... [{omitted} lines truncated] ...\n{_text(tail[-_BYTES:])}"
    else:
        shown = f"{_text(content[: 2 * _BYTES])}... [output clipped here; {len(content)} bytes were captured] ...\n"
    short = ExecuteResponse(output=shown, exit_code=response.exit_code, truncated=response.truncated)
    return ExecuteOffloadResult(offloaded=True, response=short, preview_has_truncation_marker=omitted > 0)


def _text(part: bytes) -> str:
    """The text of a part of the output, whose last line ends here even if it goes on there."""
    text = part.decode(errors="replace")
    return text if text.endswith("\n") else text + "\n"
