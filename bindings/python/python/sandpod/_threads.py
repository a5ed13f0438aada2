"""Which sandbox belongs to which conversation thread."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sandpod import _native
from sandpod.errors import SandboxError, SandboxNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandpod.config import KubernetesProviderConfig

THREAD_LABEL = "thread-id"
SCOPE_LABEL = "scope"
SHUTDOWN_TIMEOUT = 25.0
"""Seconds in which all sandboxes of a process are deleted: Kubernetes gives a Pod 30 to end."""
NO_PLACE = ""
"""A place that no sandbox has."""


class NoThreadError(SandboxError, ValueError, RuntimeError):
    """A call outside of any conversation thread, so there is no sandbox that it may use."""

    def __init__(self, message: str, code: str = "no_thread") -> None:
        """Make the error; its code says the same as its class."""
        super().__init__(message, code)


def default_scope(config: KubernetesProviderConfig, labels: dict[str, str]) -> str:
    """Return what managers share that make the same sandboxes in the same place, and no others."""
    made_of = config.template_name if config.mode == "agent-sandbox" else config.image
    what = json.dumps([config.mode, config.namespace, made_of, sorted(labels.items())])
    return hashlib.sha256(what.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Life:
    """What a thread's new sandbox has."""

    labels: dict[str, str]
    ttl_seconds: int | None
    ttl_idle_seconds: int | None
    recreate: bool


@dataclass
class Threads:
    """The sandboxes of a scope's threads: found by their ids, which every process computes alike.

    A sandbox that is found is kept until it is lost; who makes two at once for one thread gets the same one twice.
    """

    provider: Callable[[], _native.Provider]
    scope: str
    life: Life
    _known: dict[str, _native.Sandbox] = field(default_factory=dict[str, "_native.Sandbox"])
    _used: set[str] = field(default_factory=set[str])
    _earlier: dict[str, str | None] = field(default_factory=dict[str, "str | None"])
    """The place that a conversation used last, until its sandbox is found; None: some place."""
    _closed: str | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin_after_fork(self) -> None:
        """Forget what a forked child's parent has: its connections, its duty to delete, and locks that it may hold."""
        self._lock = threading.Lock()
        self._known, self._used, self._earlier = {}, set(), {}

    def id_of(self, thread: str) -> str:
        """Return the id of a thread's sandbox, be there one or not."""
        known = self._known.get(thread)
        return known.id if known else _native.thread_sandbox_id(self.scope, thread)

    def known(self, thread: str) -> _native.Sandbox | None:
        """Return the sandbox that the thread has in this process."""
        return self._known.get(thread)

    def expect(self, thread: str, sandbox_id: str | None, place: str | None) -> None:
        """Note which sandbox and place a conversation's state names.

        If the thread gets another place, the first call says that the files are gone.
        """
        with self._lock:
            if (sandbox_id or place) and thread not in self._known:
                self._earlier.setdefault(thread, place)

    def get(self, thread: str) -> _native.Sandbox:
        """Find or make a thread's sandbox."""
        self._check_open()
        if known := self._known.get(thread):
            return known
        sandbox = self._ask(thread).wait()
        self._compare(thread, self.provider().info(sandbox.id).wait())
        return self._keep(thread, sandbox)

    async def aget(self, thread: str) -> _native.Sandbox:
        """Find or make a thread's sandbox, as `get` does."""
        self._check_open()
        if known := self._known.get(thread):
            return known
        sandbox = await self._ask(thread)
        self._compare(thread, await self.provider().info(sandbox.id))
        return self._keep(thread, sandbox)

    def adopt(self, thread: str, sandbox: _native.Sandbox) -> None:
        """Let a thread have a sandbox whose id is not its own, such as an older graph's."""
        self._check_open()
        self._keep(thread, sandbox)

    def use(self, sandbox_id: str) -> None:
        """Count a sandbox among those that this process used."""
        with self._lock:
            self._used.add(sandbox_id)

    def check(self, thread: str) -> None:
        """Forget a thread's sandbox if it is gone by now."""
        if known := self._known.get(thread):
            try:
                info = self.provider().info(known.id).wait()
            except SandboxNotFoundError:
                self.lose(thread)
            else:
                self._check_status(thread, info)

    async def acheck(self, thread: str) -> None:
        """Forget a thread's sandbox, as `check` does."""
        if known := self._known.get(thread):
            try:
                info = await self.provider().info(known.id)
            except SandboxNotFoundError:
                self.lose(thread)
            else:
                self._check_status(thread, info)

    def lose(self, thread: str) -> None:
        """Forget a thread's sandbox whose place is gone: the next call gets another one, and says so.

        Where lost sandboxes stay lost it is kept, since each of its calls says that it is gone.
        """
        with self._lock:
            if self.life.recreate and (known := self._known.pop(thread, None)):
                self._earlier[thread] = NO_PLACE if known.has_report() else known.place

    def forget(self, deleted: list[str]) -> None:
        """Forget sandboxes that were deleted."""
        gone = set(deleted)
        with self._lock:
            self._used -= gone
            threads = [thread for thread, sandbox in self._known.items() if sandbox.id in gone]
        for thread in threads:
            self.lose(thread)

    def drop(self, thread: str) -> list[str]:
        """Forget a thread's sandbox, which is to be deleted; return its id, if there is one."""
        with self._lock:
            known = self._known.pop(thread, None)
            self._earlier.pop(thread, None)
            if known is None:
                return []
            self._used.discard(known.id)
            return [known.id]

    def close(self, why: str) -> list[str]:
        """Hand out nothing from now on; return the ids of what was used."""
        with self._lock:
            self._closed = why
            used, self._used = sorted(self._used), set()
            self._known.clear()
        return used

    def refuse_left(self, deletion: _native.Deletion) -> None:
        """Raise if sandboxes are left after their deletion, which may be tried again."""
        for sandbox_id in deletion["left"]:
            self.use(sandbox_id)
        if deletion["error"]:
            raise SandboxError(deletion["error"], "not_deleted")

    def _ask(self, thread: str) -> _native.Call[_native.Sandbox]:
        labels = self.life.labels | {THREAD_LABEL: thread, SCOPE_LABEL: self.scope}
        return self.provider().get_or_create(
            _native.thread_sandbox_id(self.scope, thread),
            labels,
            self.life.ttl_seconds,
            self.life.ttl_idle_seconds,
            create=True,
            recreate=self.life.recreate,
        )

    def _compare(self, thread: str, info: _native.Info) -> None:
        owner = info["labels"].get(SCOPE_LABEL), info["labels"].get(THREAD_LABEL)
        if owner != (self.scope, thread):
            msg = (
                f"The sandbox {info['id']} has the id of thread {thread!r} of {self.scope!r}, but belongs to thread "
                f"{owner[1]!r} of {owner[0]!r}. Delete it, or give this manager another scope."
            )
            raise SandboxError(msg, "already_exists")

    def _keep(self, thread: str, sandbox: _native.Sandbox) -> _native.Sandbox:
        with self._lock:
            self._used.add(sandbox.id)
            if self._closed is None:
                kept = self._known.setdefault(thread, sandbox)
                self._compare_place(thread, kept)
                return kept
        self._check_open()
        return sandbox

    def _compare_place(self, thread: str, sandbox: _native.Sandbox) -> None:
        if thread in self._earlier:
            earlier = self._earlier.pop(thread)
            if sandbox.is_new if earlier is None else sandbox.place != earlier:
                sandbox.report_replaced()

    def _check_status(self, thread: str, info: _native.Info) -> None:
        if info["status"] == "terminated":
            self.lose(thread)

    def _check_open(self) -> None:
        if self._closed is not None:
            raise SandboxError(self._closed, "closed")
