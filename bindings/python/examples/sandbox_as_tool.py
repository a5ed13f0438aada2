"""An agent with a virtual filesystem, and a tool that runs Python in a sandbox."""

from __future__ import annotations

import sys
from typing import Any

from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType]

from sandpod import KubernetesProviderConfig
from sandpod.tools import PROMPT_SUFFIX, python_tool


def main(model: Any, config: KubernetesProviderConfig) -> Any:
    """Ask about a file of the virtual filesystem, and return the conversation."""
    files = {"/sales.csv": {"content": "north,3\nsouth,4\n", "encoding": "utf-8"}}
    with python_tool(config) as python:
        agent: Any = create_deep_agent(  # pyright: ignore[reportUnknownVariableType]
            model, tools=[python.tool], system_prompt="You are a data analyst." + PROMPT_SUFFIX
        )
        return agent.invoke({"messages": [("user", "What are the total sales?")], "files": files})


if __name__ == "__main__":
    print(main("anthropic:claude-sonnet-4-5", KubernetesProviderConfig(mode=sys.argv[1])))  # noqa: T201
