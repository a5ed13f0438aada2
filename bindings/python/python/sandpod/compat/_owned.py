"""A sandbox that its object owns: the first call creates it, and `stop` deletes it."""

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
"""The error code for a claim that this package did not create."""


class OwnedSandbox(CoreSandbox):
    """Creates its sandbox with the first call, or finds that of `claim_name`."""

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
        """Store the settings, without creating a sandbox.

        Args:
            provider: Provider of the sandbox.
            claim_name: Name of the claim to find or create; None: a new name.
            labels: Labels of a new sandbox.
            policy: Policy of the sandbox.
            max_output_bytes: Most bytes of a command's output to return.
            working_dir: Working directory of commands; None: that of the sandbox.
            replace_lost: The call after the one that detects a loss gets a new sandbox.
            only_adopts: Only adopt an existing claim; create none.
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
        """The name of the claim; None before its creation."""
        made = self._made
        return made.id if made else self._given_name

    @property
    def id(self) -> str:
        """The name of the claim, once it exists."""
        return self.claim_name or "agent-sandbox"

    def make(self) -> None:
        """Create the sandbox now, if it does not exist."""
        self._current()

    async def amake(self) -> None:
        """Create the sandbox now, as `make` does."""
        await self._acurrent()

    def stop(self, *, delete: bool) -> None:
        """Forget the sandbox, and delete it if requested."""
        name, self._lost_place = self._release(), None
        if name and delete:
            self._provider.delete(sandbox_id=name)

    async def astop(self, *, delete: bool) -> None:
        """Forget the sandbox, as `stop` does."""
        name, self._lost_place = self._release(), None
        if name and delete:
            await self._provider.adelete(sandbox_id=name)

    def _release(self) -> str | None:
        """Forget the sandbox; return its name, also after a failed creation, which may have left objects."""
        with self._lock:
            begun = self._made is not None or self._name != self._given_name
            name, self._made, self._name = self._name, None, self._given_name
            return name if begun else None

    def _current(self) -> _native.Sandbox:
        if made := self._made:
            return made
        made = self._obtain(self._choose_name())
        if not self._keep(made):
            self._provider.delete(sandbox_id=made.id)
            raise _stopped(made.id)
        return made

    async def _acurrent(self) -> _native.Sandbox:
        if made := self._made:
            return made
        made = await self._aobtain(self._choose_name())
        if not self._keep(made):
            await self._provider.adelete(sandbox_id=made.id)
            raise _stopped(made.id)
        return made

    def _keep(self, made: _native.Sandbox) -> bool:
        """Store a created sandbox; return whether it was not stopped meanwhile."""
        with self._lock:
            if is_current := made.id == self._name:
                self._made = made
                if self._lost_place not in {None, made.place}:
                    made.report_replaced()
                self._lost_place = None
            return is_current

    def _choose_name(self) -> str:
        """Return the name of the claim; concurrent calls use the same name and so create one claim."""
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
        """Narrow the sandbox of an adopted claim, which was not created with our policy."""
        return native.narrowed(self._policy) if self._policy else native

    def _wait(self, operation: Operation[AnswerT, ResultT]) -> ResultT:
        return super()._wait(self._watched(operation))

    async def _run(self, operation: Operation[AnswerT, ResultT]) -> ResultT:
        return await super()._run(self._watched(operation))

    def _watched(self, operation: Operation[AnswerT, ResultT]) -> Operation[AnswerT, ResultT]:
        """Wrap an operation so that an error `gone` makes the next one create a new sandbox."""

        def failed(error: SandboxError) -> ResultT:
            if error.code == "gone" and self._replace_lost:
                lost = self._made
                self._release()
                if lost:
                    self._lost_place = lost.place
            return operation.failed(error)

        return dataclasses.replace(operation, failed=failed)


def _stopped(sandbox_id: str) -> SandboxError:
    return SandboxError(f"Sandbox {sandbox_id} was stopped during its creation and is deleted.", "closed")
