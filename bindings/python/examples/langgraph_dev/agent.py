"""What `langgraph dev` serves: each of its threads has a sandbox, which a restarted server finds again.

Start it with `langgraph dev` in this directory; the server brings its own checkpointer.
"""

from __future__ import annotations

import os
from typing import Any

from sandpod import KubernetesProviderConfig, KubernetesSandboxManager


def make_agent(model: Any, config: KubernetesProviderConfig, scope: str | None = None) -> Any:
    """Make the graph."""
    return KubernetesSandboxManager(config, ttl_idle_seconds=1800, scope=scope).create_agent(model)


def agent() -> Any:
    """Make the graph of `langgraph.json`, as `SANDPOD_*` variables and the configuration file say."""
    config = KubernetesProviderConfig.load(mode=os.environ.get("SANDPOD_MODE", "agent-sandbox"))
    return make_agent("anthropic:claude-sonnet-4-5", config)
