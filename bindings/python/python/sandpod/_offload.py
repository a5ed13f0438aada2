"""Results of commands whose output may be too long for a conversation, and is in a file of the sandbox then."""

from __future__ import annotations

from sandpod import _native
from sandpod._deepagents import ExecuteOffloadResult, ExecuteResponse


def limit(max_capture_bytes: int | None) -> int:
    """Return the number of bytes of an output that are kept for its file."""
    return _native.capture_limit(max_capture_bytes)


def to_capture(response: ExecuteResponse, max_inline_bytes: int) -> bytes | None:
    """Return the output if it is too long for the conversation and belongs in a file."""
    content = response.output.encode()
    return content if len(content) > max_inline_bytes else None


def inline(response: ExecuteResponse) -> ExecuteOffloadResult:
    """Return an output without a file, truncated where no conversation could hold it."""
    text = _native.truncated_output(response.output)
    if text is not None:
        response = ExecuteResponse(output=text, exit_code=response.exit_code, truncated=True)
    return ExecuteOffloadResult(offloaded=False, response=response)


def preview(response: ExecuteResponse) -> ExecuteOffloadResult:
    """Return the first and the last lines of a captured output."""
    text, has_marker = _native.output_preview(response.output)
    short = ExecuteResponse(output=text, exit_code=response.exit_code, truncated=response.truncated)
    return ExecuteOffloadResult(offloaded=True, response=short, preview_has_truncation_marker=has_marker)
