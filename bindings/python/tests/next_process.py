"""A process that continues the threads of an ended one and prints the results of its tools as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from sandpod import KubernetesProviderConfig, KubernetesSandboxManager
from scripted import calls, script, tool_results

Tool = tuple[str, dict[str, Any]]


def go_on(
    config: KubernetesProviderConfig, scope: str, threads: dict[str, tuple[list[Tool], dict[str, str]]]
) -> dict[str, dict[str, Any]]:
    """Call tools in another process for threads with this state; return each thread's state and results."""
    defaults = asdict(KubernetesProviderConfig(mode="raw"))
    given = {name: value for name, value in asdict(config).items() if name == "mode" or value != defaults[name]}
    asked = json.dumps({"config": given, "scope": scope, "threads": threads})
    done = subprocess.run([sys.executable, __file__], input=asked, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _main() -> None:
    asked = json.load(sys.stdin)
    manager = KubernetesSandboxManager(KubernetesProviderConfig(**asked["config"]), scope=asked["scope"])
    answered: dict[str, dict[str, Any]] = {}
    for thread, (tools, state) in asked["threads"].items():
        agent = manager.create_agent(script(*(calls((name, given)) for name, given in tools), "done"))
        after = agent.invoke({"messages": ["go on"], **state}, {"configurable": {"thread_id": thread}})
        kept = {key: after[key] for key in ("sandbox_id", "sandbox_place")}
        answered[thread] = {"state": kept, "said": tool_results(after)}
    manager.close()
    json.dump(answered, sys.stdout)


if __name__ == "__main__":
    _main()
