"""A backend that uses the methods of a handle: a sandbox of `k8s_agent_sandbox`, or an object like it."""

from __future__ import annotations

import asyncio
import inspect
import secrets
import shlex
from typing import TYPE_CHECKING, Any

from sandpod import _offload
from sandpod._deepagents import BaseSandbox, ExecuteResponse, FileDownloadResponse, FileUploadResponse
from sandpod.compat._legacy_names import LegacyNames

if TYPE_CHECKING:
    from sandpod._deepagents import ExecuteOffloadResult, FileOperationError

TIMED_OUT, NEVER_STARTED = 124, 125
NO_TIMEOUT = 7 * 24 * 3600
"""Seconds that stand for no timeout, because HTTP clients reject 0."""
CLIENT_GRACE = 10
"""Seconds that the client waits longer than the command, so that the runtime reports its timeout."""


class HandleDriver(LegacyNames, BaseSandbox):
    """Uses the methods of a handle, whose owner deletes the sandbox.

    Commands run in a shell, with stdout and stderr in the order written. The handle transfers files to the working
    directory of commands, and a command moves them to their path, so that both see the same paths.
    """

    def __init__(
        self, handle: Any, timeout: int = 300, max_output_bytes: int = 1 << 20, working_dir: str | None = None
    ) -> None:
        """Wrap a handle.

        Args:
            handle: The handle.
            timeout: Default timeout of commands, in seconds.
            max_output_bytes: Most bytes of a command's output to return.
            working_dir: Working directory of commands, created if it is missing; None: that of the runtime.
        """
        self.handle = handle
        self.default_timeout = timeout
        self._max_output_bytes = max_output_bytes
        self._enter = ""
        if working_dir is not None:
            place = shlex.quote(working_dir)
            self._enter = f"{{ test -d {place} || mkdir -p -- {place}; }} && cd -- {place} || exit {NEVER_STARTED}; "

    @property
    def id(self) -> str:
        """The name of the claim, or else of the sandbox."""
        names = (getattr(self.handle, name, None) for name in ("claim_name", "sandbox_id", "sandbox_name"))
        return next((str(name) for name in names if name), "agent-sandbox")

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command line; the exit code is 124 after a timeout, and None after a connection error."""
        return self._execute(command, timeout, self._max_output_bytes)

    def execute_with_offload(
        self,
        command: str,
        capture_path: str,
        *,
        max_inline_bytes: int,
        max_capture_bytes: int | None = None,
        timeout: int | None = None,
    ) -> ExecuteOffloadResult:
        """Run a command line; store output of more than `max_inline_bytes` in a file and return a preview.

        If the file cannot be written, the output is returned as by `execute`.
        """
        response = self._execute(command, timeout, _offload.limit(max_capture_bytes))
        content = _offload.to_capture(response, max_inline_bytes)
        if content is None or self.upload_files([(capture_path, content)])[0].error is not None:
            return _offload.inline(response)
        return _offload.preview(response)

    async def aexecute_with_offload(
        self,
        command: str,
        capture_path: str,
        *,
        max_inline_bytes: int,
        max_capture_bytes: int | None = None,
        timeout: int | None = None,  # noqa: ASYNC109 - it is the command's
    ) -> ExecuteOffloadResult:
        """Run a command line, as `execute_with_offload` does."""
        return await asyncio.to_thread(
            self.execute_with_offload,
            command,
            capture_path,
            max_inline_bytes=max_inline_bytes,
            max_capture_bytes=max_capture_bytes,
            timeout=timeout,
        )

    def _execute(self, command: str, timeout: int | None, max_output_bytes: int) -> ExecuteResponse:
        limit = self.default_timeout if timeout is None else timeout
        try:
            result = self._run(f"exec 2>&1; {self._enter}\n{command}", limit or NO_TIMEOUT)
        except Exception as error:  # noqa: BLE001 - failures are results
            if _is_timeout(error):
                return ExecuteResponse(output=_timed_out("", limit), exit_code=TIMED_OUT)
            return ExecuteResponse(output=f"Sandbox {self.id} could not be reached: {error}", exit_code=None)
        if getattr(result, "timed_out", False):
            return ExecuteResponse(output=_timed_out(result.stdout, limit), exit_code=TIMED_OUT)
        output = (result.stdout + result.stderr).encode()
        kept = output[:max_output_bytes].decode(errors="replace")
        return ExecuteResponse(output=kept, exit_code=result.exit_code, truncated=len(output) > max_output_bytes)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files; results are per file."""
        return [FileUploadResponse(path=path, error=self._upload(path, content)) for path, content in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read whole files; results are per file."""
        return [self._download(path) for path in paths]

    def _upload(self, path: str, content: bytes) -> FileOperationError | str | None:
        if not path.startswith("/"):
            return "invalid_path"
        temporary = _temporary()
        target = shlex.quote(path)
        try:
            self._files.write(temporary, content)
            move = f'mkdir -p -- "$(dirname -- {target})" && test ! -d {target} && mv -f -- {temporary} {target}'
            moved = self._run(
                f"{move} || {{ code=$?; rm -f {temporary}; test -d {target} && echo directory; exit $code; }}"
            )
        except Exception as error:  # noqa: BLE001 - each file has its own outcome
            return _reason(str(error))
        return None if moved.exit_code == 0 else _reason(moved.stdout + moved.stderr)

    def _download(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path=path, error="invalid_path")
        temporary = _temporary()
        try:
            copied = self._run(f"cp -- {shlex.quote(path)} {temporary}")
            if copied.exit_code != 0:
                return FileDownloadResponse(path=path, error=_reason(copied.stdout + copied.stderr))
            content = self._files.read(temporary)
            self._run(f"rm -f {temporary}")
        except Exception as error:  # noqa: BLE001 - each file has its own outcome
            return FileDownloadResponse(path=path, error=_reason(str(error)))
        return FileDownloadResponse(path=path, content=content)

    @property
    def _files(self) -> Any:
        return self._part("files")

    def _run(self, script: str, timeout: int = 60) -> Any:
        """Run a script with `sh -c`, because runtimes start programs without a shell."""
        run = self._part("commands").run
        line = f"sh -c {shlex.quote(script)}"
        if "command_timeout" in inspect.signature(run).parameters:
            return run(line, timeout=timeout + CLIENT_GRACE, command_timeout=timeout)
        return run(line, timeout=timeout)

    def _part(self, name: str) -> Any:
        """Return the handle's `files` or `commands`: older handles are both themselves, closed ones have none."""
        part = getattr(self.handle, name, self.handle)
        if part is None:
            msg = "its connection was closed. Create a new handle, or use the name of the claim"
            raise ConnectionError(msg)
        return part


def _temporary() -> str:
    """Return a temporary file name, relative to the directory of commands and files."""
    return f".sandpod-{secrets.token_hex(8)}"


def _timed_out(output: str, limit: int) -> str:
    before = output if not output or output.endswith("\n") else f"{output}\n"
    return f"{before}Command timed out after {limit}s"


def _is_timeout(error: BaseException) -> bool:
    """Return whether an error is a timeout; the HTTP library's exception may be its cause."""
    chain = (error, error.__cause__)
    return any(isinstance(one, TimeoutError) or "Timeout" in type(one).__name__ for one in chain if one is not None)


def _reason(text: str) -> FileOperationError | str:
    """Return Deep Agents' error code for a message, or the message."""
    lowered = text.lower()
    codes: dict[str, FileOperationError] = {
        "permission denied": "permission_denied",
        "read-only file system": "permission_denied",
        "directory": "is_directory",
        "not found": "file_not_found",
    }
    if "no such file" in lowered:
        return "file_not_found"
    return next(
        (code for words, code in codes.items() if words in lowered), text.strip() or "the sandbox returned no message"
    )
