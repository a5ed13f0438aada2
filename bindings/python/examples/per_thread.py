"""One sandbox per conversation: files and shell state are kept for the next turn, also after a restart."""

from __future__ import annotations

import sys
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver

from sandpod import KubernetesProviderConfig, KubernetesSandboxManager


def main(model: Any, config: KubernetesProviderConfig) -> list[str]:
    """Run a conversation of two turns, and return the answers."""
    answers: list[str] = []
    with KubernetesSandboxManager(config, ttl_idle_seconds=1800) as manager:
        agent = manager.create_agent(model, checkpointer=InMemorySaver(), system_prompt="You are a data analyst.")
        thread: Any = {"configurable": {"thread_id": "conversation-1"}}
        for question in ("Write the first ten squares to squares.txt.", "What is their sum?"):
            state = agent.invoke({"messages": [("user", question)]}, thread)
            answers.append(str(state["messages"][-1].content))
    return answers


if __name__ == "__main__":
    for answer in main("anthropic:claude-sonnet-4-5", KubernetesProviderConfig(mode=sys.argv[1])):
        print(answer)  # noqa: T201
