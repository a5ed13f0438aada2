"""Places: a template, its pool and an account in a cluster, for the code and tests of other packages."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from objects import (
    GUEST_TOKEN,
    guest_template,
    kubeconfig_of_account,
    kubectl_of,
    router_address,
    sandboxd_template,
    stock_template,
)
from sandpod import KubernetesProvider, KubernetesProviderConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

ROLES = Path(__file__).resolve().parents[3] / "deploy" / "rbac"
ROUTERS = "agent-sandbox-system"
ACCOUNT = "sandpod-agent-sandbox"
TO_PODS = {"pods/exec", "pods/portforward"}
LABEL = "sandpod-tests-stage"
GATEWAY = "my-gateway"
POOLED = 3
"""The size of the pool, so that tests rarely wait for a Pod to start."""


def in_places(*names: str) -> pytest.MarkDecorator:
    """Run a test in each of these places, given by the fixture `place`."""
    return pytest.mark.parametrize("staged", names, indirect=True)


by_router = in_places("guest-by-router", "stock-by-router")
by_gateway = in_places("guest-by-gateway", "stock-by-gateway")
by_exec_and_router = in_places("guest-by-exec", "guest-by-router", "stock-by-exec", "stock-by-router")
"""The place of tests without a connection."""


@dataclass(frozen=True)
class Place:
    """A namespace with one template and one connection to its sandboxes."""

    name: str
    """The template and the connection, such as `stock-by-router`."""
    namespace: str
    template: str
    pool: str
    kubeconfig: Path
    kubectl: Callable[..., str]

    @property
    def is_stock(self) -> bool:
        """Whether the template is without our guest."""
        return self.name.startswith("stock-")

    @property
    def files(self) -> str:
        """The working directory of commands in the template's image."""
        return "/app" if self.is_stock else "/workspace"

    def claims(self, *arguments: str) -> list[str]:
        """Return the names of existing claims."""
        found = self.kubectl("get", "sandboxclaims", "--output=name", *arguments).split()
        return [name.rpartition("/")[2] for name in found]


@contextmanager
def stage(name: str, namespace: str, kubeconfig: Path) -> Generator[Place]:
    """Create the namespace with all objects of the place, and write the kubeconfig of the account."""
    inside, _, connection = name.partition("-by-")
    kubectl = kubectl_of(namespace)
    kubectl("create", "namespace", namespace)
    try:
        for where, objects in _rights(namespace, connection).items():
            kubectl("apply", f"--namespace={where}", "--filename=-", text=_list(objects))
        template = _template(inside, kubectl, namespace)
        # The names in langchain-k8s's manifests.
        template["metadata"]["name"] = "sandboxd-template" if inside == "sandboxd" else "python-sandbox-template"
        template["spec"]["envVarsInjectionPolicy"] = "Allowed"
        pool = _pool(template["metadata"]["name"].replace("-template", "-pool"), template)
        kubectl("apply", "--filename=-", text=_list([template, pool]))
        if inside == "guest" and connection != "exec":
            kubectl("apply", "--filename=-", text=_list([_token()]))
        if connection == "gateway":
            _make_gateway(kubectl)
        kubeconfig.write_text(kubeconfig_of_account(ACCOUNT, kubectl))
        yield Place(name, namespace, template["metadata"]["name"], pool["metadata"]["name"], kubeconfig, kubectl)
    finally:
        kubectl("delete", "namespace", namespace, "--wait=false")
        kubectl("delete", "role,rolebinding", f"--namespace={ROUTERS}", f"--selector={LABEL}={namespace}")


def _template(inside: str, kubectl: Callable[..., str], namespace: str) -> Any:
    if inside == "sandboxd":
        return sandboxd_template()
    if inside == "stock":
        return stock_template()
    # A plain Pod installs the guest in the namespace.
    admin = os.environ["SANDPOD_TEST_KUBECONFIG"]
    config = KubernetesProviderConfig(
        mode="raw", namespace=namespace, kubeconfig=admin, image="sandpod.test/busybox:1", cpu_request="1m"
    )
    provider = KubernetesProvider(config)
    provider.delete(sandbox_id=provider.get_or_create().id)
    maps = [name.removeprefix("configmap/") for name in kubectl("get", "configmaps", "--output=name").split()]
    return guest_template([name for name in maps if name.startswith("sandpod-guest-")])


def _pool(name: str, template: Any) -> dict[str, Any]:
    return {
        "apiVersion": template["apiVersion"],
        "kind": "SandboxWarmPool",
        "metadata": {"name": name},
        "spec": {"replicas": POOLED, "sandboxTemplateRef": {"name": template["metadata"]["name"]}},
    }


def _token() -> dict[str, Any]:
    """Create the Secret with the guests' token, for accounts without exec."""
    metadata = {"name": "sandpod-guest-token", "labels": {"sandpod.dev/guest-token": "true"}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"token": GUEST_TOKEN.decode()}}


def _make_gateway(kubectl: Callable[..., str]) -> None:
    """Create a Gateway with the router's address in its status, as its controller would."""
    address, port = router_address()
    gateway = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": GATEWAY},
        "spec": {"gatewayClassName": "none", "listeners": [{"name": "web", "protocol": "HTTP", "port": port}]},
    }
    status = {"status": {"addresses": [{"type": "IPAddress", "value": address}]}}
    kubectl("apply", "--filename=-", text=json.dumps(gateway))
    kubectl("patch", f"gateway/{GATEWAY}", "--subresource=status", "--type=merge", f"--patch={json.dumps(status)}")


def _rights(namespace: str, connection: str) -> dict[str, list[dict[str, Any]]]:
    """Create our RBAC objects; without exec, Pods can only be reached through the router."""
    own = _objects("agent-sandbox.yaml", namespace)
    if connection == "exec":
        return {namespace: own}
    for role in (each for each in own if each["kind"] == "Role"):
        role["rules"] = [rule for rule in role["rules"] if rule["resources"][0] not in TO_PODS]
    if connection == "gateway":
        return {namespace: own}
    routers = _objects("agent-sandbox-router.yaml", namespace)
    for each in routers:
        each["metadata"] |= {"name": namespace, "labels": {LABEL: namespace}}
        if each["kind"] == "RoleBinding":
            each["roleRef"]["name"] = namespace
    return {namespace: own, ROUTERS: routers}


def _objects(file: str, namespace: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROLES / file).read_text().replace("NAMESPACE", namespace)))


def _list(objects: list[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
