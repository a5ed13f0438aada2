"""A sandbox that its object owns: made with the first call, and ended by `stop`."""

from __future__ import annotations

import dataclasses
import json
import threading
from typing import TYPE_CHECKING, Any

from sandpod.compat._older import OlderNames
from sandpod.sandbox import KubernetesSandbox

if TYPE_CHECKING:
    from deepagents.backends.protocol import ExecuteResponse

    from sandpod import _native
    from sandpod._operations import AnswerT, Operation, ResultT
    from sandpod.errors import SandboxError
    from sandpod.provider import KubernetesProvider


class OwnedSandbox(OlderNames, KubernetesSandbox):
    """Makes its sandbox with the first call, or finds the one of `claim_name`. One that is lost is replaced."""

    def __init__(
        self,
        provider: KubernetesProvider,
        *,
        claim_name: str | None,
        labels: dict[str, str] | None,
        policy: dict[str, Any] | None,
        max_output_bytes: int | None = None,
    ) -> None:
        """Remember what is wanted; nothing is made yet."""
        self._provider = provider
        self._claim_name = claim_name
        self._labels = labels or {}
        self._policy = json.dumps(policy) if policy else None
        self._made: _native.Sandbox | None = None
        self._lock = threading.Lock()
        self._shell_session = None
        self._max_output_bytes = max_output_bytes

    @property
    def claim_name(self) -> str | None:
        """The name by which it is found again; None before there is one."""
        made = self._made
        return made.id if made else self._claim_name

    @property
    def id(self) -> str:
        """Its name, once it has one."""
        return self.claim_name or "agent-sandbox"

    def make(self) -> None:
        """Make the sandbox now, if it isn't there."""
        self._here()

    async def amake(self) -> None:
        """Make the sandbox now, as `make` does."""
        await self._ahere()

    def stop(self, *, delete: bool) -> None:
        """Let the sandbox go, and delete it if it is to be."""
        made = self._let_go()
        if made and delete:
            self._provider.delete(sandbox_id=made.id)

    async def astop(self, *, delete: bool) -> None:
        """Let the sandbox go, as `stop` does."""
        made = self._let_go()
        if made and delete:
            await self._provider.adelete(sandbox_id=made.id)

    def _let_go(self) -> _native.Sandbox | None:
        made, self._made = self._made, None
        return made

    def _here(self) -> _native.Sandbox:
        with self._lock:
            if self._made is None:
                self._made = self._ask().wait()
            return self._made

    async def _ahere(self) -> _native.Sandbox:
        if made := self._made:
            return made
        made = await self._ask()
        with self._lock:
            if self._made is None:
                self._made = made
                return made
        # Another call was quicker; without a name, ours is one too many.
        if self._made.id != made.id:
            await self._provider.adelete(sandbox_id=made.id)
        return self._made

    def _ask(self) -> _native.Call[_native.Sandbox]:
        create = self._claim_name is not None
        return self._provider.native().get_or_create(
            self._claim_name, self._labels, None, None, self._policy, create=create
        )

    def _execution(
        self, command: str, timeout: int | None, max_output_bytes: int | None = None
    ) -> Operation[_native.Executed, ExecuteResponse]:
        return super()._execution(command, timeout, max_output_bytes or self._max_output_bytes)

    def _wait(self, operation: Operation[AnswerT, ResultT]) -> ResultT:
        return super()._wait(self._watched(operation))

    async def _run(self, operation: Operation[AnswerT, ResultT]) -> ResultT:
        return await super()._run(self._watched(operation))

    def _watched(self, operation: Operation[AnswerT, ResultT]) -> Operation[AnswerT, ResultT]:
        """The same operation; if it finds out that the sandbox is gone, the next one gets another."""

        def failed(error: SandboxError) -> ResultT:
            if error.code == "gone":
                self._let_go()
            return operation.failed(error)

        return dataclasses.replace(operation, failed=failed)
