"""A policy and an audit log around any sandbox."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Any, Self

from sandpod import _native, _operations
from sandpod._deepagents import (
    DeleteResult,
    EditResult,
    ExecuteResponse,
    FileUploadResponse,
    WriteResult,
)
from sandpod._forwarding import Forwarding
from sandpod.sandbox import KubernetesSandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from sandpod._deepagents import SandboxBackendProtocol
    from sandpod._operations import Files

    AuditLog = Callable[[str, str, dict[str, Any]], None]

logger = logging.getLogger(__name__)

BLOCKED = "Policy denied: command blocked by policy"
"""The output of a denied command."""


class SandboxPolicyWrapper(Forwarding):
    """A sandbox with denied paths and commands, and an audit log. Reads are never denied.

    Paths are normalized before the comparison: `/app/../etc` is `/etc`. For a sandbox of this package, the guest's
    kernel also resolves links. Denied commands are a guard rail, not a security boundary: a script can run what its
    command line does not show. To enforce a policy, set it in the configuration of the sandbox.

    Example:
        >>> from sandpod import SandboxPolicyWrapper
        >>> safe = SandboxPolicyWrapper(sandbox, deny_prefixes=["/etc"], deny_commands=["rm -rf"])  # doctest: +SKIP
        >>> safe.write("/etc/passwd", "").error  # doctest: +SKIP
        "Policy denied: writes not allowed under '/etc/passwd'"
    """

    def __init__(
        self,
        backend: SandboxBackendProtocol,
        deny_prefixes: Sequence[str] | None = None,
        deny_commands: Sequence[str] | None = None,
        audit_log: AuditLog | None = None,
        *,
        strict_audit: bool = False,
    ) -> None:
        """Wrap a sandbox.

        Args:
            backend: The sandbox, of this package or any other.
            deny_prefixes: Directories in which writes, edits, uploads and deletes are denied.
            deny_commands: Texts that commands must not contain, and programs (with arguments) that they must not run.
            audit_log: Called with the operation, its target and metadata before each allowed operation.
            strict_audit: Fail an operation if `audit_log` raises; otherwise the exception is logged.
        """
        rules = {
            "deny_prefixes": list(deny_prefixes or []),
            "deny_scope": "file_tools",
            "deny_commands": list(deny_commands or []),
            "deny_texts": list(deny_commands or []),
        }
        policy = json.dumps(rules)
        self._policy = _native.Policy(policy)
        self._backend = backend.narrowed(rules) if isinstance(backend, KubernetesSandbox) else backend
        self._context = backend
        self._audit_log = audit_log
        self._strict_audit = strict_audit
        self._exits = ExitStack()
        self._async_exits = AsyncExitStack()

    def __enter__(self) -> Self:
        """Enter the context of the sandbox, if it has one."""
        if hasattr(self._context, "__enter__"):
            self._exits.enter_context(self._context)  # pyright: ignore[reportArgumentType, reportUnknownMemberType]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the context of the sandbox."""
        self._exits.__exit__(kind, error, traceback)

    async def __aenter__(self) -> Self:
        """Enter the context of the sandbox, if it has one."""
        if hasattr(self._context, "__aenter__"):
            await self._async_exits.enter_async_context(self._context)  # pyright: ignore[reportArgumentType, reportUnknownMemberType]
        else:
            self.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the context of the sandbox."""
        await self._async_exits.__aexit__(kind, error, traceback)
        self._exits.__exit__(kind, error, traceback)

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command line that is not denied."""
        if self._policy.denies_command(command):
            return ExecuteResponse(output=BLOCKED, exit_code=1)
        if stop := self._audit("execute", command, {}):
            return ExecuteResponse(output=stop, exit_code=1)
        return self._backend.execute(command, timeout=timeout)

    async def aexecute(
        self,
        command: str,
        *,
        timeout: int | None = None,  # noqa: ASYNC109 - it is the command's
    ) -> ExecuteResponse:
        """Run a command line, as `execute` does."""
        if self._policy.denies_command(command):
            return ExecuteResponse(output=BLOCKED, exit_code=1)
        if stop := await self._aaudit("execute", command, {}):
            return ExecuteResponse(output=stop, exit_code=1)
        return await self._backend.aexecute(command, timeout=timeout)

    def write(self, file_path: str, content: str) -> WriteResult:
        """Write a file outside the denied prefixes."""
        refusal = self._policy.refusal("write", file_path)
        if stop := refusal or self._audit("write", file_path, {"size": len(content)}):
            return WriteResult(error=stop, path=file_path)
        return self._backend.write(file_path, content)

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """Write a file, as `write` does."""
        refusal = self._policy.refusal("write", file_path)
        if stop := refusal or await self._aaudit("write", file_path, {"size": len(content)}):
            return WriteResult(error=stop, path=file_path)
        return await self._backend.awrite(file_path, content)

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Edit a file outside the denied prefixes."""
        refusal = self._policy.refusal("edit", file_path)
        if stop := refusal or self._audit("edit", file_path, {"replace_all": replace_all}):
            return EditResult(error=stop, path=file_path, occurrences=0)
        return self._backend.edit(file_path, old_string, new_string, replace_all)

    async def aedit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Edit a file, as `edit` does."""
        refusal = self._policy.refusal("edit", file_path)
        if stop := refusal or await self._aaudit("edit", file_path, {"replace_all": replace_all}):
            return EditResult(error=stop, path=file_path, occurrences=0)
        return await self._backend.aedit(file_path, old_string, new_string, replace_all)

    def delete(self, file_path: str) -> DeleteResult:
        """Delete a file outside the denied prefixes."""
        refusal = self._policy.refusal("delete", file_path)
        if stop := refusal or self._audit("delete", file_path, {}):
            return DeleteResult(error=stop, path=file_path)
        return self._backend.delete(file_path)

    async def adelete(self, file_path: str) -> DeleteResult:
        """Delete a file, as `delete` does."""
        refusal = self._policy.refusal("delete", file_path)
        if stop := refusal or await self._aaudit("delete", file_path, {}):
            return DeleteResult(error=stop, path=file_path)
        return await self._backend.adelete(file_path)

    def upload_files(self, files: Files) -> list[FileUploadResponse]:
        """Upload the files outside the denied prefixes; results are per file, in the given order.

        Args:
            files: Pairs of path and content, or a dict from path to content.
        """
        files = _operations.pairs(files)
        stops = [self._denied_upload(path) or self._audit("upload", path, {"size": len(body)}) for path, body in files]
        taken = [file for file, stop in zip(files, stops, strict=True) if stop is None]
        return _in_order(files, stops, self._backend.upload_files(taken) if taken else [])

    async def aupload_files(self, files: Files) -> list[FileUploadResponse]:
        """Upload files, as `upload_files` does."""
        files = _operations.pairs(files)
        stops = [
            self._denied_upload(path) or await self._aaudit("upload", path, {"size": len(body)}) for path, body in files
        ]
        taken = [file for file, stop in zip(files, stops, strict=True) if stop is None]
        return _in_order(files, stops, await self._backend.aupload_files(taken) if taken else [])

    def _denied_upload(self, path: str) -> str | None:
        return "policy_denied" if self._policy.refusal("upload", path) else None

    def _audit(self, operation: str, target: str, facts: dict[str, Any]) -> str | None:
        """Call the audit log; return the reason if the operation must not run."""
        if self._audit_log is None:
            return None
        try:
            self._audit_log(operation, target, facts)
        except Exception as error:  # noqa: BLE001 - any failure of the callback
            if self._strict_audit:
                logger.warning("Audit log callback failed (stopping): %s", error)
                return f"Audit log callback failed, so nothing was done: {error}"
            logger.warning("Audit log callback failed (continuing): %s", error)
        return None

    async def _aaudit(self, operation: str, target: str, facts: dict[str, Any]) -> str | None:
        """Call the audit log without blocking the event loop."""
        if self._audit_log is None:
            return None
        return await asyncio.to_thread(self._audit, operation, target, facts)


def _in_order(
    files: list[tuple[str, bytes]], stops: list[str | None], uploaded: list[FileUploadResponse]
) -> list[FileUploadResponse]:
    """Return the result of each file, in the given order."""
    outcomes = iter(uploaded)
    return [
        FileUploadResponse(path=path, error=stop) if stop is not None else next(outcomes)
        for (path, _), stop in zip(files, stops, strict=True)
    ]
