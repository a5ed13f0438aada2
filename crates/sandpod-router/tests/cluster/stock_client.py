"""agent-sandbox's own client from PyPI through a router.

Arguments: URL of the router, namespace, warm pool. The variable ROUTER_TOKEN has the caller's token.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

from k8s_agent_sandbox import SandboxClient
from k8s_agent_sandbox.models import SandboxDirectConnectionConfig
from k8s_agent_sandbox.sandbox import Sandbox

LARGE = bytes(range(256)) * (16 << 12)


def use(sandbox: Sandbox) -> None:
    """Run commands, and write, read, list, find and delete files."""
    run, files = sandbox.commands.run, sandbox.files
    with ThreadPoolExecutor(21) as threads:
        late = threads.submit(run, "sh -c 'sleep 40; echo late'", timeout=200, command_timeout=150)
        result = run("sh -c 'echo out; exit 3'")
        assert (result.stdout, result.exit_code) == ("out\n", 3), result

        files.write("a file.txt", b"text\n")
        assert files.read("a file.txt") == b"text\n"
        assert "a file.txt" in [entry.name for entry in files.list(".")]
        assert files.exists("a file.txt")
        assert not files.exists("another.txt")
        removed = run("rm 'a file.txt'")
        assert removed.exit_code == 0, removed
        assert not files.exists("a file.txt")

        files.write("large", LARGE, timeout=200)
        assert files.read("large", timeout=200) == LARGE

        def echo(number: int) -> str:
            return run(f"echo {number}", timeout=150).stdout

        assert list(threads.map(echo, range(20))) == [f"{number}\n" for number in range(20)]
        assert late.result().stdout == "late\n", late.result()


def main() -> None:
    """Claim a sandbox, use it, and terminate it."""
    url, namespace, pool = sys.argv[1:]
    headers = {"Authorization": f"Bearer {os.environ['ROUTER_TOKEN']}"}
    client = SandboxClient(connection_config=SandboxDirectConnectionConfig(api_url=url, extra_headers=headers))
    sandbox = client.create_sandbox(pool, namespace=namespace)
    use(sandbox)
    sandbox.terminate()


if __name__ == "__main__":
    main()
