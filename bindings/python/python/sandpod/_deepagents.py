"""Deep Agents' names, for every supported version.

Only this module checks the version. It defines the names that an older version lacks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

OLDEST = (0, 6, 1)
"""The oldest version for files and commands; everything else requires 0.7.6."""

_INSTALL = "Install with: pip install sandpod[deepagents]"


def _check_version() -> None:
    try:
        installed = version("deepagents")
    except PackageNotFoundError as missing:
        msg = f"Sandboxes for Deep Agents require the 'deepagents' package, which sandpod.Sandbox doesn't. {_INSTALL}"
        raise ImportError(msg, name="deepagents") from missing
    if tuple(map(int, re.findall(r"\d+", installed)[:3])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        msg = f"deepagents {installed} is installed, and sandpod works with {oldest} or newer. {_INSTALL}"
        raise ImportError(msg, name="deepagents")


_check_version()

from deepagents import (  # noqa: E402 - after the version check
    create_deep_agent,  # pyright: ignore[reportUnknownVariableType] - of its tools
)
from deepagents.backends.protocol import (  # noqa: E402
    BackendProtocol,
    EditResult,
    ExecuteResponse,
    FileData,
    FileDownloadResponse,
    FileInfo,
    FileOperationError,
    FileUploadResponse,
    GrepMatch,
    LsResult,
    SandboxBackendProtocol,
    WriteResult,
)
from deepagents.backends.sandbox import (  # noqa: E402
    MAX_BINARY_BYTES,
    MAX_OUTPUT_BYTES,
    TRUNCATION_MSG,
    BaseSandbox,
)
from deepagents.backends.utils import EMPTY_CONTENT_WARNING  # noqa: E402

if TYPE_CHECKING:
    from deepagents.backends.protocol import (
        DeleteResult,
        ExecuteOffloadResult,
        GlobResult,
        GrepResult,
        ReadResult,
    )
    from deepagents.backends.utils import EMPTY_OLD_STRING_ERROR, normalize_read_bounds

    def read_file_type(path: str) -> str:
        """Return the type of a file by its name: `text`, or something else."""
        ...
else:
    try:
        from deepagents.backends.protocol import (
            DeleteResult,
            ExecuteOffloadResult,
            GlobResult,
            GrepResult,
            ReadResult,
        )
        from deepagents.backends.utils import EMPTY_OLD_STRING_ERROR, normalize_read_bounds
        from deepagents.backends.utils import _get_backend_read_file_type as read_file_type
    except ImportError:
        from deepagents.backends import protocol
        from deepagents.backends.utils import _get_file_type as read_file_type

        EMPTY_OLD_STRING_ERROR = "Error: old_string cannot be empty. Provide the exact text to replace."

        def normalize_read_bounds(offset: int, limit: int) -> tuple[int, int]:
            return max(offset, 0), max(limit, 0)

        @dataclass
        class DeleteResult:
            error: str | None = None
            path: str | None = None

        @dataclass(frozen=True, slots=True)
        class ExecuteOffloadResult:
            offloaded: bool
            response: ExecuteResponse
            preview_has_truncation_marker: bool = False

        @dataclass
        class ReadResult(protocol.ReadResult):
            total_lines: int | None = None
            start_line: int | None = None
            end_line: int | None = None
            next_offset: int | None = None
            no_lines_requested: bool = False

        @dataclass
        class GrepResult(protocol.GrepResult):
            truncated: bool = False

        @dataclass
        class GlobResult(protocol.GlobResult):
            truncated: bool = False
            truncation_reason: str | None = None


__all__ = [
    "EMPTY_CONTENT_WARNING",
    "EMPTY_OLD_STRING_ERROR",
    "MAX_BINARY_BYTES",
    "MAX_OUTPUT_BYTES",
    "TRUNCATION_MSG",
    "BackendProtocol",
    "BaseSandbox",
    "DeleteResult",
    "EditResult",
    "ExecuteOffloadResult",
    "ExecuteResponse",
    "FileData",
    "FileDownloadResponse",
    "FileInfo",
    "FileOperationError",
    "FileUploadResponse",
    "GlobResult",
    "GrepMatch",
    "GrepResult",
    "LsResult",
    "ReadResult",
    "SandboxBackendProtocol",
    "WriteResult",
    "create_deep_agent",
    "normalize_read_bounds",
    "read_file_type",
]
