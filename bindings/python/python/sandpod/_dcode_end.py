"""Deletes the sandbox of a `dcode` session once its process has ended, however that was.

`dcode` deletes its sandbox in an `atexit` handler of its server. It ends that server by SIGTERM to the process group,
after which uvicorn ends without such handlers, and by SIGKILL three seconds later. So another process, in a session of
its own, waits for the end of its input, which is the end of the server, and deletes the sandbox.
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
"""Seconds before a deletion that failed is tried again."""
DELETED = "deleted\n"

logger = logging.getLogger(__name__)


class SessionEnd:
    """The process that deletes one sandbox when this one has ended."""

    def __init__(self, config: KubernetesProviderConfig, sandbox_id: str) -> None:
        """Start it. The configuration may hold secrets, so it goes through the pipe."""
        self._process = subprocess.Popen(  # noqa: S603 - this module
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        self._tell(json.dumps({"mode": config.mode, "options": config.explicit(), "sandbox_id": sandbox_id}) + "\n")

    def cancel(self) -> None:
        """Let the sandbox be: it is deleted already."""
        self._tell(DELETED)
        self._process.communicate()

    def _tell(self, line: str) -> None:
        if self._process.stdin is None:
            return
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            logger.warning("Nothing deletes the sandbox when dcode is killed: the process for that has ended.")


def main(told: IO[str]) -> None:
    """Wait for the session's end, and delete its sandbox unless the session has."""
    said = told.readline()
    if not said or told.readline() == DELETED:
        return
    session = json.loads(said)
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
