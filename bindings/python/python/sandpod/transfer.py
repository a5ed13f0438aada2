"""Whole directories, to a sandbox and from it."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandpod import _native

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TransferProgress:
    """How far a transfer is. After a lost stream it begins again, and so does this."""

    entries: int
    """Files, directories and links."""
    bytes: int


@dataclass(frozen=True)
class TransferSummary:
    """What was transferred."""

    files: int
    directories: int
    links: int
    bytes: int
    skipped: int
    """Sockets, devices and pipes, which no transfer takes."""
    links_left_out: int
    """Links of a download that lead out of its directory, or can't be made here."""


def wait(
    transfer: tuple[_native.Call[_native.TreeSummary], _native.Progress],
    tell: Callable[[TransferProgress], None] | None,
) -> TransferSummary:
    """Transfer, and tell how far it is from a thread of its own."""
    call, progress = transfer
    if tell is None:
        return TransferSummary(**call.wait())

    def listen() -> None:
        while (step := progress.next().wait()) is not None:
            _tell(tell, step)

    listener = threading.Thread(target=listen, name="sandpod-progress", daemon=True)
    listener.start()
    try:
        return TransferSummary(**call.wait())
    finally:
        listener.join()


async def run(
    transfer: tuple[_native.Call[_native.TreeSummary], _native.Progress],
    tell: Callable[[TransferProgress], None] | None,
) -> TransferSummary:
    """Transfer, and tell how far it is on the event loop that awaits this."""
    call, progress = transfer
    if tell is None:
        return TransferSummary(**await call)

    async def listen() -> None:
        while (step := await progress.next()) is not None:
            _tell(tell, step)

    listener = asyncio.create_task(listen())
    try:
        return TransferSummary(**await call)
    finally:
        await listener


def _tell(tell: Callable[[TransferProgress], None], step: _native.TreeStep) -> None:
    try:
        tell(TransferProgress(**step))
    except Exception:
        logger.exception("A progress callback failed; the transfer goes on.")
