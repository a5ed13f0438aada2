"""agent-sandbox's own client as it comes from PyPI, with all its defaults, doing what it is told line by line.

Arguments: namespace, warm pool. Lines: claim, release, execute, write, read, list, exists, and `burst N`.
Each is answered by one line of JSON: how long it took in ms, or why it failed.
"""

import json
import logging
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from k8s_agent_sandbox import SandboxClient
from k8s_agent_sandbox.sandbox import Sandbox

PATH = "peer.txt"
CONTENT = b"x" * 1024


class Peer:
    """The client, and the sandbox that it has."""

    def __init__(self, namespace: str, pool: str) -> None:
        self.namespace, self.pool = namespace, pool
        self.client = SandboxClient()
        self.sandbox: Sandbox | None = None

    def start(self) -> Sandbox:
        """Claim a sandbox that has answered a command."""
        sandbox = self.client.create_sandbox(self.pool, namespace=self.namespace)
        self.run(sandbox)
        return sandbox

    def run(self, sandbox: Sandbox) -> None:
        """Run a line in a shell, as our `execute` does."""
        result = sandbox.commands.run("sh -c true")
        if result.exit_code != 0:
            message = f"true failed: {result}"
            raise RuntimeError(message)

    def do(self, what: str) -> float:
        """Do one thing and say how long it took."""
        if what == "release":
            return timed(self.release)
        if what == "claim":
            return timed(self.claim)
        if what.startswith("burst "):
            return self.burst(int(what.removeprefix("burst ")))
        sandbox = self.sandbox
        calls: dict[str, Callable[[], object]] = {
            "execute": lambda: self.run(sandbox),
            "write": lambda: sandbox.files.write(PATH, CONTENT),
            "read": lambda: sandbox.files.read(PATH),
            "list": lambda: sandbox.files.list("."),
            "exists": lambda: sandbox.files.exists(PATH),
        }
        return timed(calls[what])

    def claim(self) -> None:
        """Have a sandbox."""
        self.sandbox = self.start()

    def release(self) -> None:
        """Have none any more."""
        self.client.delete_sandbox(self.sandbox.claim_name, self.namespace)
        self.sandbox = None

    def burst(self, count: int) -> float:
        """Claim many at once, and wait until the last one has answered."""
        begin = time.perf_counter()
        with ThreadPoolExecutor(count) as threads:
            starting = [threads.submit(self.start) for _ in range(count)]
            failures = [done.exception() for done in starting]
        took = (time.perf_counter() - begin) * 1000
        self.client.delete_all()
        failed = [failure for failure in failures if failure]
        if failed:
            message = f"{len(failed)} of {count}: {failed[0]}"
            raise RuntimeError(message)
        return took


def timed(work: Callable[[], object]) -> float:
    """How long it takes, in ms."""
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1000


def main() -> None:
    """Answer line by line."""
    logging.disable()
    peer = Peer(sys.argv[1], sys.argv[2])
    for line in sys.stdin:
        try:
            answer = {"ms": peer.do(line.strip())}
        except Exception as failure:  # noqa: BLE001 - every failure is reported
            answer = {"failure": f"{type(failure).__name__}: {failure}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
