"""The user's cluster, configured by the variables of `langchain-kubernetes` and `SANDPOD_*`."""

from __future__ import annotations

import os
from typing import Any

from sandpod import KubernetesProviderConfig

WANTED = os.environ.get("K8S_INTEGRATION") == "1"
"""Whether tests run on the cluster of kubectl."""


def config(mode: str) -> KubernetesProviderConfig:
    """Return the configuration of its sandboxes."""
    options: dict[str, Any] = {"namespace": os.environ.get("SANDBOX_NAMESPACE", "default")}
    if timeout := os.environ.get("SANDBOX_TIMEOUT"):
        options["startup_timeout_seconds"] = int(timeout)
    if mode == "agent-sandbox":
        options["template_name"] = os.environ.get("SANDBOX_TEMPLATE", "python-sandbox-template")
        if router := os.environ.get("ROUTER_URL"):
            options |= {"connection_mode": "direct", "api_url": router}
    return KubernetesProviderConfig.load(mode=mode, **options)
