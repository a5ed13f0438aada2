"""Deletes the sandbox of a `dcode` session after its process has ended.

`dcode` deletes its sandbox in an `atexit` handler of its server. It stops that server with SIGTERM to the process
group, after which uvicorn exits without running such handlers, and with SIGKILL three seconds later. A separate process
in its own session therefore waits for EOF on stdin, which is the end of the server, and deletes the sandbox.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from sandpod.config import KubernetesProviderConfig
from sandpod.errors import SandboxError
from sandpod.provider import KubernetesProvider

if TYPE_CHECKING:
    from typing import IO

PAUSES = (1, 10, 60)
"""Seconds before each retry of a failed deletion."""
DELETED = "deleted\n"

logger = logging.getLogger(__name__)


class SessionReaper:
    """A process that deletes one sandbox after this process has ended."""

    def __init__(self, config: KubernetesProviderConfig, sandbox_id: str) -> None:
        """Start the process. The configuration may hold secrets, so it is sent through the pipe."""
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        self._send(json.dumps({"mode": config.mode, "options": config.explicit(), "sandbox_id": sandbox_id}) + "\n")

    def cancel(self) -> None:
        """End the process without deleting the sandbox."""
        self._send(DELETED)
        self._process.communicate()

    def _send(self, line: str) -> None:
        if self._process.stdin is None:
            return
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            logger.warning("The cleanup process has ended: if dcode is killed, its sandbox is not deleted.")


def main(source: IO[str]) -> None:
    """Wait for the end of the session, and delete its sandbox unless the session did."""
    line = source.readline()
    if not line or source.readline() == DELETED:
        return
    session = json.loads(line)
    provider = KubernetesProvider(KubernetesProviderConfig(mode=session["mode"], **session["options"]))
    for pause in (*PAUSES, None):
        try:
            provider.delete(sandbox_id=session["sandbox_id"])
        except SandboxError:
            if pause is None:
                raise
            time.sleep(pause)
        else:
            return


if __name__ == "__main__":
    main(sys.stdin)
