"""Converts the connection options of other packages to those of this package."""

from __future__ import annotations

from typing import Any

ROUTERS = "agent-sandbox-system"
"""The first namespace in which the router is searched; unless another one is given, this is the default."""


def fields(
    api_url: str | None,
    gateway_name: str | None,
    gateway_namespace: str = "default",
    server_port: int = 8888,
    router_namespace: str = ROUTERS,
) -> dict[str, Any]:
    """Return the connection options for a URL or a Gateway; without either, the first mode that works is used."""
    options: dict[str, Any] = {"server_port": server_port}
    if router_namespace != ROUTERS:
        options["router_namespace"] = router_namespace
    if api_url is not None:
        return options | {"connection_mode": "direct", "api_url": api_url}
    if gateway_name is not None:
        gateway = {"gateway_name": gateway_name, "gateway_namespace": gateway_namespace}
        return options | {"connection_mode": "gateway"} | gateway
    return options


def of_config(connection: Any) -> dict[str, Any]:
    """Return the connection options for a configuration of `k8s_agent_sandbox`, by its attributes."""
    options = fields(
        getattr(connection, "api_url", None),
        getattr(connection, "gateway_name", None),
        getattr(connection, "gateway_namespace", "default"),
        getattr(connection, "server_port", 8888),
        getattr(connection, "router_namespace", ROUTERS),
    )
    if headers := getattr(connection, "extra_headers", None):
        options["extra_headers"] = dict(headers)
    if pair := getattr(connection, "client_cert", None):
        options["client_cert"], options["client_key"] = pair
    if authority := getattr(connection, "ca_cert", None):
        options["ca_cert"] = authority
    return options
