"""What another package's tests need in a cluster: a namespace with a template, a pool of it and an account."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from objects import guest_template, kubeconfig_of_account, kubectl_of, sandboxd_template, stock_template
from sandpod import KubernetesProvider, KubernetesProviderConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

ROLES = Path(__file__).resolve().parents[3] / "deploy" / "rbac"
ROUTERS = "agent-sandbox-system"
ACCOUNT = "sandpod-agent-sandbox"
TO_PODS = {"pods/exec", "pods/portforward"}
LABEL = "sandpod-tests-peers"
POOLED = 3
"""How many sandboxes the pool keeps ready, so that a test seldom waits for a Pod to start."""

PLACES = ["guest-by-exec", "stock-by-exec", "stock-by-router", "sandboxd-by-exec"]
"""A template and the only connection to its sandboxes."""


@contextmanager
def stage(place: str, namespace: str, kubeconfig: Path) -> Generator[None]:
    """Makes the namespace with all that the place needs, and writes the kubeconfig of the account."""
    inside, _, connection = place.partition("-by-")
    kubectl = kubectl_of(namespace)
    kubectl("create", "namespace", namespace)
    try:
        for where, objects in _rights(namespace, connection).items():
            kubectl("apply", f"--namespace={where}", "--filename=-", text=_list(objects))
        template = _template(inside, kubectl, namespace)
        # The names of langchain-k8s's own manifests.
        template["metadata"]["name"] = "sandboxd-template" if inside == "sandboxd" else "python-sandbox-template"
        template["spec"]["envVarsInjectionPolicy"] = "Allowed"
        pool = _pool(template["metadata"]["name"].replace("-template", "-pool"), template)
        kubectl("apply", "--filename=-", text=_list([template, pool]))
        kubeconfig.write_text(kubeconfig_of_account(ACCOUNT, kubectl))
        yield
    finally:
        kubectl("delete", "namespace", namespace, "--wait=false")
        kubectl("delete", "role,rolebinding", f"--namespace={ROUTERS}", f"--selector={LABEL}={namespace}")


def _template(inside: str, kubectl: Callable[..., str], namespace: str) -> Any:
    if inside == "sandboxd":
        return sandboxd_template()
    if inside == "stock":
        return stock_template()
    # A plain Pod brings the guest into the namespace.
    admin = os.environ["SANDPOD_TEST_KUBECONFIG"]
    config = KubernetesProviderConfig(
        mode="raw", namespace=namespace, kubeconfig=admin, image="sandpod.test/busybox:1", cpu_request="1m"
    )
    provider = KubernetesProvider(config)
    provider.delete(sandbox_id=provider.get_or_create().id)
    maps = [name.removeprefix("configmap/") for name in kubectl("get", "configmaps", "--output=name").split()]
    return guest_template([name for name in maps if name.startswith("sandpod-guest-")])


def _pool(name: str, template: Any) -> dict[str, object]:
    return {
        "apiVersion": template["apiVersion"],
        "kind": "SandboxWarmPool",
        "metadata": {"name": name},
        "spec": {"replicas": POOLED, "sandboxTemplateRef": {"name": template["metadata"]["name"]}},
    }


def _rights(namespace: str, connection: str) -> dict[str, list[dict[str, Any]]]:
    """The rights that we ship, by namespace; who has the router's has none to reach a Pod without it."""
    if connection == "exec":
        return {namespace: _objects("agent-sandbox.yaml", namespace)}
    own = _objects("agent-sandbox.yaml", namespace)
    for role in (each for each in own if each["kind"] == "Role"):
        role["rules"] = [
            rule for rule in role["rules"] if rule["resources"][0] not in {"pods/exec", "pods/portforward"}
        ]
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
