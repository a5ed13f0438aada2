"""A graph for `langgraph dev`: each thread has a sandbox, which a restarted server finds again.

Run `langgraph dev` in this directory; the server has its own checkpointer.
"""

from __future__ import annotations

import os
from typing import Any

from sandpod import KubernetesProviderConfig, KubernetesSandboxManager


def make_agent(model: Any, config: KubernetesProviderConfig, scope: str | None = None) -> Any:
    """Create the graph."""
    return KubernetesSandboxManager(config, ttl_idle_seconds=1800, scope=scope).create_agent(model)


def agent() -> Any:
    """Create the graph of `langgraph.json`, configured by `SANDPOD_*` variables and the configuration file."""
    config = KubernetesProviderConfig.load(mode=os.environ.get("SANDPOD_MODE", "agent-sandbox"))
    return make_agent("anthropic:claude-sonnet-4-5", config)
