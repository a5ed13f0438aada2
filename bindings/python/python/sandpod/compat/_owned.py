"""A sandbox that its object owns: made with the first call, and ended by `stop`."""

from __future__ import annotations

import dataclasses
import json
import threading
import uuid
from typing import TYPE_CHECKING, Any

from sandpod.compat._core import CoreSandbox
from sandpod.errors import SandboxError

if TYPE_CHECKING:
    from sandpod import _native
    from sandpod._operations import AnswerT, Operation, ResultT
    from sandpod.provider import KubernetesProvider


FOREIGN = "already_exists"
"""The code for a claim that this package did not make."""


class OwnedSandbox(CoreSandbox):
    """Makes its sandbox with the first call, or finds the one of `claim_name`."""

    def __init__(  # noqa: PLR0913 - keywords
        self,
        provider: KubernetesProvider,
        *,
        claim_name: str | None = None,
        labels: dict[str, str] | None = None,
        policy: dict[str, Any] | None = None,
        max_output_bytes: int | None = None,
        working_dir: str | None = None,
        replace_lost: bool = True,
        only_adopts: bool = False,
    ) -> None:
        """Remember what is wanted; nothing is made yet.

        Args:
            provider: Makes it.
            claim_name: The name to find it by, or to make it under; None: a new name.
            labels: Those of a new one.
            policy: What callers may do in it.
            max_output_bytes: What is kept of a command's output.
            working_dir: Where commands start, if not in the sandbox's own directory.
            replace_lost: The call after one that found it lost gets another.
            only_adopts: It is only found, never made.
        """
        self._provider = provider
        self._given_name = claim_name
        self._name = claim_name
        self._labels = labels or {}
        self._policy = json.dumps(policy) if policy else None
        self._made: _native.Sandbox | None = None
        self._lost_place: str | None = None
        self._lock = threading.Lock()
        self._shell_session = None
        self._max_output_bytes = max_output_bytes
        self._working_dir = working_dir
        self._replace_lost = replace_lost
        self._only_adopts = only_adopts

    @property
    def claim_name(self) -> str | None:
        """The name by which it is found again; None before there is one."""
        made = self._made
        return made.id if made else self._given_name

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
        name, self._lost_place = self._let_go(), None
        if name and delete:
            self._provider.delete(sandbox_id=name)

    async def astop(self, *, delete: bool) -> None:
        """Let the sandbox go, as `stop` does."""
        name, self._lost_place = self._let_go(), None
        if name and delete:
            await self._provider.adelete(sandbox_id=name)

    def _let_go(self) -> str | None:
        """Forget the sandbox; its name, also if making it has failed: then something of it may be there."""
        with self._lock:
            begun = self._made is not None or self._name != self._given_name
            name, self._made, self._name = self._name, None, self._given_name
            return name if begun else None

    def _here(self) -> _native.Sandbox:
        if made := self._made:
            return made
        made = self._obtain(self._choose_name())
        if not self._keep(made):
            self._provider.delete(sandbox_id=made.id)
            raise _stopped(made.id)
        return made

    async def _ahere(self) -> _native.Sandbox:
        if made := self._made:
            return made
        made = await self._aobtain(self._choose_name())
        if not self._keep(made):
            await self._provider.adelete(sandbox_id=made.id)
            raise _stopped(made.id)
        return made

    def _keep(self, made: _native.Sandbox) -> bool:
        """Whether it is still wanted."""
        with self._lock:
            if wanted := made.id == self._name:
                self._made = made
                if self._lost_place not in {None, made.place}:
                    made.report_replaced()
                self._lost_place = None
            return wanted

    def _choose_name(self) -> str:
        """Who makes it at the same moment makes the same one: its name is the lock."""
        with self._lock:
            self._name = self._name or f"sandbox-claim-{uuid.uuid4().hex}"
            return self._name

    def _obtain(self, name: str) -> _native.Sandbox:
        if not self._only_adopts:
            try:
                return self._ask(name).wait()
            except SandboxError as error:
                if error.code != FOREIGN:
                    raise
        return self._adopted(self._provider.native().adopt(name).wait())

    async def _aobtain(self, name: str) -> _native.Sandbox:
        if not self._only_adopts:
            try:
                return await self._ask(name)
            except SandboxError as error:
                if error.code != FOREIGN:
                    raise
        return self._adopted(await self._provider.native().adopt(name))

    def _ask(self, name: str) -> _native.Call[_native.Sandbox]:
        native = self._provider.native()
        return native.get_or_create(name, self._labels, None, None, self._policy, create=True)

    def _adopted(self, native: _native.Sandbox) -> _native.Sandbox:
        """The sandbox of somebody else's claim, which was not bound to our policy."""
        return native.narrowed(self._policy) if self._policy else native

    def _wait(self, operation: Operation[AnswerT, ResultT]) -> ResultT:
        return super()._wait(self._watched(operation))

    async def _run(self, operation: Operation[AnswerT, ResultT]) -> ResultT:
        return await super()._run(self._watched(operation))

    def _watched(self, operation: Operation[AnswerT, ResultT]) -> Operation[AnswerT, ResultT]:
        """The same operation; if it finds out that the sandbox is gone, the next one gets another."""

        def failed(error: SandboxError) -> ResultT:
            if error.code == "gone" and self._replace_lost:
                lost = self._made
                self._let_go()
                if lost:
                    self._lost_place = lost.place
            return operation.failed(error)

        return dataclasses.replace(operation, failed=failed)


def _stopped(sandbox_id: str) -> SandboxError:
    return SandboxError(f"The sandbox {sandbox_id} was stopped while it was made, so it is gone again.", "closed")
