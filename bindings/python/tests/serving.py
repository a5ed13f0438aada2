"""HTTP servers of tests."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.request import urlopen

import pytest

import sandpod

if TYPE_CHECKING:
    from collections.abc import Generator

TESTS = Path(__file__).parent
EXAMPLES = TESTS.parent / "examples"
PACKAGE = Path(sandpod.__file__).parents[1]
PATIENCE = 120
"""Seconds for a server to start or stop, on a busy machine."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextmanager
def serving(command: list[str], port: int, ready: str, directory: Path) -> Generator[str]:
    """Start a server, wait until `ready` answers, and stop it at the end."""
    paths = [TESTS, EXAMPLES, EXAMPLES / "langgraph_dev", PACKAGE, directory]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "LANGSMITH_TRACING": "false"}
    url = f"http://127.0.0.1:{port}"
    with (directory / "log").open("ab") as log:
        server = subprocess.Popen(command, cwd=directory, env=environment, stdout=log, stderr=log)
    try:
        _wait_for(url + ready, server, directory / "log")
        yield url
    finally:
        server.terminate()
        server.wait(PATIENCE)


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urlopen(url, timeout=5).close()  # noqa: S310 - our own
        except (URLError, OSError):
            time.sleep(0.2)
        else:
            return
    pytest.fail(f"The server did not come up:\n{log.read_text()}")
