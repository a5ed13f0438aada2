"""How a provider's audit reaches a function: one queue, drained by one thread of Python's own."""

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
    """Count the lines of an audit file; `SandboxError` with the first line that is not what was written."""
    return _native.verify_audit(path)


def listen(callback: Callable[[dict[str, Any]], None]) -> SimpleQueue[Batch | None]:
    """Start a thread that calls back for each event that is put into the queue."""
    queue: SimpleQueue[Batch | None] = SimpleQueue()
    threading.Thread(target=_drain, args=(queue, callback), name="sandpod-audit", daemon=True).start()
    return queue


def flush_at_exit(provider: _native.Provider) -> None:
    """Let the callback hear what was done last before the interpreter ends."""

    def flush() -> None:
        if (alive := known()) is not None:
            alive.flush_audit().wait()

    known = weakref.ref(provider, lambda _: atexit.unregister(flush))
    atexit.register(flush)


def _drain(queue: SimpleQueue[Batch | None], callback: Callable[[dict[str, Any]], None]) -> None:
    # None: the provider is gone.
    while (batch := queue.get()) is not None:
        events, receipt = batch
        error = None
        for event in events:
            try:
                callback(json.loads(event))
            except Exception as raised:  # noqa: BLE001 - whatever it raises, the event was not taken
                error = f"{type(raised).__name__}: {raised}"
        receipt.settle(error)
