"""Three backends: `/sandbox/` is a sandbox, `/memories/` outlives the conversation, the rest is deleted with it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType]
from deepagents.backends import CompositeBackend, StateBackend, StoreBackend
from langgraph.store.memory import InMemoryStore

from sandpod import KubernetesProvider, KubernetesProviderConfig

if TYPE_CHECKING:
    from deepagents.backends.protocol import BackendProtocol


def main(model: Any, config: KubernetesProviderConfig) -> tuple[Any, bytes | None]:
    """Let the agent write to all three, and return the conversation and the file in the sandbox."""
    provider = KubernetesProvider(config)
    sandbox = provider.get_or_create(policy={"root_dir": "/workspace", "deny_scope": "file_tools"})
    try:
        places: dict[str, BackendProtocol] = {
            "/sandbox/": sandbox,
            "/memories/": StoreBackend(namespace=lambda _runtime: ("memories",)),
        }
        backend = CompositeBackend(default=StateBackend(), routes=places)
        agent: Any = create_deep_agent(model, backend=backend, store=InMemoryStore())  # pyright: ignore[reportUnknownVariableType]
        state = agent.invoke({"messages": [("user", "Write a script, and remember where it is.")]})
        return state, sandbox.download_files(["/script.py"])[0].content
    finally:
        provider.delete(sandbox_id=sandbox.id)


if __name__ == "__main__":
    print(main("anthropic:claude-sonnet-4-5", KubernetesProviderConfig(mode=sys.argv[1])))  # noqa: T201
