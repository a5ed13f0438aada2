"""Objects of tests in a cluster, and calls as administrator or as an account with our RBAC objects."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pytest

GUEST_TOKEN = b"what opens guests over the network"


def kubectl_of(namespace: str) -> Callable[..., str]:
    """Returns a function that calls kubectl as the cluster's admin."""
    admin = os.environ["SANDPOD_TEST_KUBECONFIG"]

    def kubectl(*arguments: str, text: str | None = None) -> str:
        command = ["kubectl", f"--kubeconfig={admin}", f"--namespace={namespace}", *arguments]
        return subprocess.run(command, input=text, check=True, capture_output=True, text=True).stdout

    return kubectl


def router_address() -> tuple[str, int]:
    """Returns the address and the port of the Pod of the sandbox router."""
    kubectl = kubectl_of("agent-sandbox-system")
    (router,) = json.loads(kubectl("get", "pods", "--selector=app=sandbox-router", "--output=json"))["items"]
    return router["status"]["podIP"], 8080


def router_url() -> str:
    """Returns the URL of the sandbox router."""
    address, port = router_address()
    return f"http://{address}:{port}"


def guest_template(guest: list[str]) -> dict[str, object]:
    """Return a small template like that in deploy/agent-sandbox, with access by exec and router."""
    places = {
        "state": "/run/sandpod",
        "workspace": "/workspace",
        "app": "/app",
        "home": "/home/sandbox",
        "results": "/large_tool_results",
        "history": "/conversation_history",
        "blobs": "/blobs",
    }
    container = {
        "name": "sandbox",
        "image": "sandpod.test/python:1",
        # With the APIs of agent-sandbox's runtimes, for handles of its SDK.
        "command": ["/sandpod/boot", "serve", "--stock-apis"],
        "env": [
            {"name": "SANDPOD_STATE_DIR", "value": "/run/sandpod"},
            {"name": "SANDPOD_TOKEN_SHA256", "value": hashlib.sha256(GUEST_TOKEN).hexdigest()},
        ],
        # Wait for a ready Pod of the pool: the router cannot connect to one before.
        "readinessProbe": {"tcpSocket": {"port": 8888}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "1m", "memory": "8Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "guest", "mountPath": "/sandpod", "readOnly": True}]
        + [{"name": name, "mountPath": path} for name, path in places.items()],
    }
    sources = [{"configMap": {"name": name}} for name in guest]
    volumes = [{"name": "guest", "projected": {"defaultMode": 0o555, "sources": sources}}]
    return template_of("python", container, volumes + [{"name": name, "emptyDir": {}} for name in places])


def stock_template() -> dict[str, object]:
    """Return a template as in agent-sandbox's documents: the first runtime, no volume, a probe each second."""
    container = {
        "name": "python-runtime",
        "image": "sandpod.test/stock-python:1",
        "ports": [{"containerPort": 8888}],
        "readinessProbe": {"httpGet": {"path": "/", "port": 8888}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "1m", "memory": "8Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return template_of("stock", container, [])


def sandboxd_template() -> dict[str, object]:
    """Returns a template with agent-sandbox's second runtime, whose image has no Python."""
    container = {
        "name": "runtime",
        "image": "sandpod.test/sandboxd:1",
        "command": ["/sandboxd", "--root-dir", "/workspace"],
        "env": [{"name": "HOME", "value": "/workspace"}],
        "resources": {"requests": {"cpu": "1m", "memory": "8Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "files", "mountPath": "/workspace"}, {"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
    }
    return template_of("sandboxd", container, [{"name": name, "emptyDir": {}} for name in ("files", "tmp")])


def template_of(
    name: str, container: Mapping[str, object], volumes: Sequence[Mapping[str, object]]
) -> dict[str, object]:
    return {
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxTemplate",
        "metadata": {"name": name},
        "spec": {
            "networkPolicyManagement": "Unmanaged",
            "podTemplate": {
                "spec": {
                    "restartPolicy": "OnFailure",
                    "terminationGracePeriodSeconds": 1,
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": 1000,
                        "runAsGroup": 1000,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [container],
                    "volumes": volumes,
                }
            },
        },
    }


def kubeconfig_of(account: str, kubectl: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes the kubeconfig of a ServiceAccount of the namespace."""
    kubeconfig = tmp_path_factory.mktemp("cluster") / "kubeconfig"
    kubeconfig.write_text(kubeconfig_of_account(account, kubectl))
    return kubeconfig


def kubeconfig_of_account(account: str, kubectl: Callable[..., str]) -> str:
    """Returns the kubeconfig of a ServiceAccount of the namespace."""
    token = kubectl("create", "token", account, "--duration=2h").strip()
    cluster = json.loads(kubectl("config", "view", "--raw", "--minify", "--flatten", "--output=json"))["clusters"]
    return kubeconfig_text(cluster[0]["cluster"], token)


def kubeconfig_text(cluster: dict[str, str], token: str | None) -> str:
    """Returns a kubeconfig; JSON is YAML, too."""
    user = {} if token is None else {"token": token}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
    )
