"""Transfers of directories to and from a sandbox."""

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
    """The progress of a transfer. After a lost stream, the transfer and its progress restart."""

    entries: int
    """Files, directories and links."""
    bytes: int


@dataclass(frozen=True)
class TransferSummary:
    """The summary of a transfer."""

    files: int
    directories: int
    links: int
    bytes: int
    skipped: int
    """Sockets, devices and pipes, which are not transferred."""
    links_left_out: int
    """Links of a download that point outside its directory, or cannot be created."""


def wait(
    transfer: tuple[_native.Call[_native.TreeSummary], _native.Progress],
    callback: Callable[[TransferProgress], None] | None,
) -> TransferSummary:
    """Wait for a transfer, and call back with its progress from a separate thread."""
    call, progress = transfer
    if callback is None:
        return TransferSummary(**call.wait())

    def listen() -> None:
        while (step := progress.next().wait()) is not None:
            _notify(callback, step)

    listener = threading.Thread(target=listen, name="sandpod-progress", daemon=True)
    listener.start()
    try:
        return TransferSummary(**call.wait())
    finally:
        listener.join()


async def run(
    transfer: tuple[_native.Call[_native.TreeSummary], _native.Progress],
    callback: Callable[[TransferProgress], None] | None,
) -> TransferSummary:
    """Await a transfer, and call back with its progress on the event loop."""
    call, progress = transfer
    if callback is None:
        return TransferSummary(**await call)

    async def listen() -> None:
        while (step := await progress.next()) is not None:
            _notify(callback, step)

    listener = asyncio.create_task(listen())
    try:
        return TransferSummary(**await call)
    finally:
        await listener


def _notify(callback: Callable[[TransferProgress], None], step: _native.TreeStep) -> None:
    try:
        callback(TransferProgress(**step))
    except Exception:
        logger.exception("A progress callback failed; the transfer continues.")
