"""Restrict an agent with a policy, and record its operations with an audit log."""

from __future__ import annotations

import sys
from typing import Any

from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType]

from sandpod import KubernetesProvider, KubernetesProviderConfig, SandboxPolicyWrapper


def main(model: Any, config: KubernetesProviderConfig) -> tuple[Any, list[tuple[str, str]]]:
    """Run the agent, and return the conversation and the log."""
    log: list[tuple[str, str]] = []
    provider = KubernetesProvider(config)
    sandbox = provider.get_or_create()
    try:
        secured = SandboxPolicyWrapper(
            sandbox,
            deny_prefixes=["/etc"],
            deny_commands=["curl"],
            audit_log=lambda operation, target, _meta: log.append((operation, target)),
        )
        agent: Any = create_deep_agent(model, backend=secured)  # pyright: ignore[reportUnknownVariableType]
        return agent.invoke({"messages": [("user", "Set up the machine.")]}), log
    finally:
        provider.delete(sandbox_id=sandbox.id)


if __name__ == "__main__":
    print(main("anthropic:claude-sonnet-4-5", KubernetesProviderConfig(mode=sys.argv[1])))  # noqa: T201
