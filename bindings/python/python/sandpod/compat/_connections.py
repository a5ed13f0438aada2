"""What other packages say of the way to a sandbox, as this one's configuration says it."""

from __future__ import annotations

from typing import Any

ROUTERS = "agent-sandbox-system"
"""Where the router is looked for first if nobody says where it is; those of older installations are elsewhere."""


def fields(
    api_url: str | None,
    gateway_name: str | None,
    gateway_namespace: str = "default",
    server_port: int = 8888,
    router_namespace: str = ROUTERS,
) -> dict[str, Any]:
    """The way that a URL or a Gateway names; without either the first that works."""
    way: dict[str, Any] = {"server_port": server_port}
    if router_namespace != ROUTERS:
        way["router_namespace"] = router_namespace
    if api_url is not None:
        return way | {"connection_mode": "direct", "api_url": api_url}
    if gateway_name is not None:
        gateway = {"gateway_name": gateway_name, "gateway_namespace": gateway_namespace}
        return way | {"connection_mode": "gateway"} | gateway
    return way


def of_config(connection: Any) -> dict[str, Any]:
    """The way that a connection configuration of `k8s_agent_sandbox` names, told by what it has."""
    way = fields(
        getattr(connection, "api_url", None),
        getattr(connection, "gateway_name", None),
        getattr(connection, "gateway_namespace", "default"),
        getattr(connection, "server_port", 8888),
        getattr(connection, "router_namespace", ROUTERS),
    )
    if headers := getattr(connection, "extra_headers", None):
        way["extra_headers"] = dict(headers)
    if pair := getattr(connection, "client_cert", None):
        way["client_cert"], way["client_key"] = pair
    if authority := getattr(connection, "ca_cert", None):
        way["ca_cert"] = authority
    return way
