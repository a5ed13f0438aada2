"""Delivers audit events to a Python function: one queue, drained by one thread."""

from __future__ import annotations

import atexit
import json
import threading
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from sandpod import _native

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

Batch = tuple[list[str], "_native.Receipt"]


def verify_audit(path: str | PathLike[str]) -> int:
    """Return the number of lines of an audit file; raise `SandboxError` at the first line that was changed."""
    return _native.verify_audit(path)


def listen(callback: Callable[[dict[str, Any]], None]) -> SimpleQueue[Batch | None]:
    """Start a thread that calls `callback` for each event of the returned queue."""
    queue: SimpleQueue[Batch | None] = SimpleQueue()
    threading.Thread(target=_drain, args=(queue, callback), name="sandpod-audit", daemon=True).start()
    return queue


def flush_at_exit(provider: _native.Provider) -> None:
    """Flush the audit before the interpreter exits."""

    def flush() -> None:
        if (alive := known()) is not None:
            alive.flush_audit().wait()

    known = weakref.ref(provider, lambda _: atexit.unregister(flush))
    atexit.register(flush)


def _drain(queue: SimpleQueue[Batch | None], callback: Callable[[dict[str, Any]], None]) -> None:
    # None: the provider was dropped.
    while (batch := queue.get()) is not None:
        events, receipt = batch
        error = None
        for event in events:
            try:
                callback(json.loads(event))
            except Exception as raised:  # noqa: BLE001 - any failure of the callback
                error = f"{type(raised).__name__}: {raised}"
        receipt.settle(error)
