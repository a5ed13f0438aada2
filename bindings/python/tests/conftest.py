"""A cluster that never answers, for what needs none, and a real one for tests marked `cluster`."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandpod import KubernetesProvider, KubernetesProviderConfig
from sandpod.compat import langchain_agent_sandbox, langchain_k8s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[3]
ROLES = ROOT / "deploy" / "rbac"
ROLE = ROLES / "raw.yaml"
GUEST_TOKEN = b"what opens guests over the network"
REFUSAL = b'{"kind":"Status","apiVersion":"v1","status":"Failure","message":"you cannot do that","code":403}'


class SilentServer:
    """An API server that takes calls and answers none of them until it is told to refuse."""

    def __init__(self) -> None:
        self.called = threading.Event()
        self.hung_up = threading.Event()
        self.refuse = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(0.02)
            asked = False
            while True:
                try:
                    if not connection.recv(65536):
                        break
                    asked = True
                    self.called.set()
                except TimeoutError:
                    if asked and self.refuse.is_set():
                        head = f"HTTP/1.1 403 Forbidden\r\nContent-Length: {len(REFUSAL)}\r\n\r\n"
                        connection.sendall(head.encode() + REFUSAL)
                        asked = False
                except OSError:
                    break
            self.hung_up.set()


@pytest.fixture
def server() -> Iterator[SilentServer]:
    server = SilentServer()
    yield server
    server.close()


@pytest.fixture
def kubeconfig(server: SilentServer, tmp_path: Path) -> Path:
    """A file that leads to the silent server."""
    path = tmp_path / "kubeconfig"
    path.write_text(_kubeconfig({"server": server.url}, "none"))
    return path


@pytest.fixture
def provider(kubeconfig: Path) -> KubernetesProvider:
    """A provider whose calls end at the silent server."""
    return KubernetesProvider(KubernetesProviderConfig(mode="raw", kubeconfig=str(kubeconfig)))


@pytest.fixture(scope="session")
def local_config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., KubernetesProviderConfig]]:
    """Makes configurations for sandboxes on this machine, in a state directory of the tests' own."""
    state = tmp_path_factory.mktemp("state")

    def config(**fields: object) -> KubernetesProviderConfig:
        return KubernetesProviderConfig(mode="local", **fields)  # pyright: ignore[reportArgumentType]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(state))
        yield config
    left = [path.name for path in (state / "sandpod" / "local").glob("*")]
    assert not left, f"left behind: {left}"


@pytest.fixture
def on_this_machine(
    local_config: Callable[..., KubernetesProviderConfig], monkeypatch: pytest.MonkeyPatch
) -> list[KubernetesProviderConfig]:
    """Sandboxes of the drop-in modules are made here; what was asked for is in the list."""
    asked: list[KubernetesProviderConfig] = []

    def make_provider(config: KubernetesProviderConfig, **_: bool) -> KubernetesProvider:
        asked.append(config)
        return KubernetesProvider(local_config(default_exec_timeout=config.default_exec_timeout))

    for module in (langchain_k8s, langchain_agent_sandbox):
        monkeypatch.setattr(module, "make_provider", make_provider)
    return asked


@pytest.fixture(scope="session")
def raw_config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., KubernetesProviderConfig]]:
    """Makes configurations for a namespace that enforces `restricted`, with the rights that we ship and no more."""
    if not os.environ.get("SANDPOD_TEST_KUBECONFIG"):
        pytest.skip(
            "SANDPOD_TEST_KUBECONFIG names no cluster; K8S_INTEGRATION=1 runs tests marked integration on kubectl's"
        )
    namespace = f"sandpod-python-{os.getpid()}-{int(time.time())}"

    kubectl = _kubectl(namespace)
    kubectl("create", "namespace", namespace)
    try:
        kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
        kubectl("apply", "--filename=-", text=ROLE.read_text().replace("NAMESPACE", namespace))
        kubeconfig = _kubeconfig_of("sandpod-raw", kubectl, tmp_path_factory)

        def config(**fields: object) -> KubernetesProviderConfig:
            common = {"mode": "raw", "namespace": namespace, "kubeconfig": str(kubeconfig)}
            small = {"cpu_request": "1m", "memory_request": "8Mi"}
            return KubernetesProviderConfig(**(common | small | fields))  # pyright: ignore[reportArgumentType]

        yield config
        found = json.loads(kubectl("get", "leases,pods", "--output=json"))["items"]
        left = [each["metadata"]["name"] for each in found if "deletionTimestamp" not in each["metadata"]]
        assert not left, f"left behind: {left}"
    finally:
        kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture(scope="session")
def agent_sandbox_config(
    raw_config: Callable[..., KubernetesProviderConfig], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., KubernetesProviderConfig]]:
    """Makes configurations for a template with the guest in it, with the rights that we ship and no more."""
    raw = KubernetesProvider(raw_config(image="sandpod.test/busybox:1"))
    # It brings the guest into the namespace.
    raw.delete(sandbox_id=raw.get_or_create().id)
    namespace = raw_config().namespace
    maps = _kubectl(namespace)("get", "configmaps", "--output=name").split()
    guest = [name.removeprefix("configmap/") for name in maps if name.startswith("configmap/sandpod-guest-")]
    token = tmp_path_factory.mktemp("guest") / "token"
    token.write_bytes(GUEST_TOKEN)
    own = {"template_name": "python", "guest_token_file": str(token)}
    yield from _of_template(_template(guest), namespace, tmp_path_factory, own)


@pytest.fixture(scope="session")
def stock_runtime_config(
    raw_config: Callable[..., KubernetesProviderConfig], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., KubernetesProviderConfig]]:
    """Makes configurations for a template with agent-sandbox's first runtime in it, which no guest of ours joins."""
    own = {"mode": "agent-sandbox", "template_name": "stock", "connection_mode": "in-cluster"}
    yield from _of_template(_stock_template(), raw_config().namespace, tmp_path_factory, own)


def _of_template(
    template: dict[str, object],
    namespace: str,
    tmp_path_factory: pytest.TempPathFactory,
    own: Mapping[str, str],
) -> Iterator[Callable[..., KubernetesProviderConfig]]:
    """Makes configurations for a template, with the rights that we ship; takes it away when nothing of it is left."""
    kubectl = _kubectl(namespace)
    role = (ROLES / "agent-sandbox.yaml").read_text().replace("NAMESPACE", namespace)
    kubectl("apply", "--filename=-", text=role)
    kubectl("apply", "--filename=-", text=json.dumps(template))
    kubeconfig = _kubeconfig_of("sandpod-agent-sandbox", kubectl, tmp_path_factory)

    def config(**fields: object) -> KubernetesProviderConfig:
        common = {"namespace": namespace, "kubeconfig": str(kubeconfig), **own}
        return KubernetesProviderConfig(**(common | fields))  # pyright: ignore[reportArgumentType]

    yield config
    KubernetesProvider(config()).cleanup()
    left = kubectl("get", "sandboxclaims,sandboxwarmpools", "--output=name")
    assert not left, f"left behind: {left}"
    kubectl("delete", "sandboxtemplate", own["template_name"])


def _kubectl(namespace: str) -> Callable[..., str]:
    """Calls kubectl as who runs the cluster."""
    admin = os.environ["SANDPOD_TEST_KUBECONFIG"]

    def kubectl(*arguments: str, text: str | None = None) -> str:
        command = ["kubectl", f"--kubeconfig={admin}", f"--namespace={namespace}", *arguments]
        return subprocess.run(command, input=text, check=True, capture_output=True, text=True).stdout

    return kubectl


def _template(guest: list[str]) -> dict[str, object]:
    """As those in deploy/agent-sandbox, but small: reached by exec and by the router."""
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
        # With the APIs of agent-sandbox's own runtimes, for handles of its SDK.
        "command": ["/sandpod/boot", "serve", "--stock-apis"],
        "env": [
            {"name": "SANDPOD_STATE_DIR", "value": "/run/sandpod"},
            {"name": "SANDPOD_TOKEN_SHA256", "value": hashlib.sha256(GUEST_TOKEN).hexdigest()},
        ],
        # A pool hands out what is ready: before that the router has nobody to speak to.
        "readinessProbe": {"tcpSocket": {"port": 8888}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "1m", "memory": "8Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "guest", "mountPath": "/sandpod", "readOnly": True}]
        + [{"name": name, "mountPath": path} for name, path in places.items()],
    }
    sources = [{"configMap": {"name": name}} for name in guest]
    volumes = [{"name": "guest", "projected": {"defaultMode": 0o555, "sources": sources}}]
    return _template_of("python", container, volumes + [{"name": name, "emptyDir": {}} for name in places])


def _stock_template() -> dict[str, object]:
    """As the documents of agent-sandbox's users have it: its first runtime, no volume, a probe each second."""
    container = {
        "name": "python-runtime",
        "image": "sandpod.test/stock-python:1",
        "ports": [{"containerPort": 8888}],
        "readinessProbe": {"httpGet": {"path": "/", "port": 8888}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "1m", "memory": "8Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return _template_of("stock", container, [])


def _template_of(
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


def _kubeconfig_of(account: str, kubectl: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that lets us be a ServiceAccount of the namespace."""
    token = kubectl("create", "token", account, "--duration=2h").strip()
    cluster = json.loads(kubectl("config", "view", "--raw", "--minify", "--flatten", "--output=json"))["clusters"]
    kubeconfig = tmp_path_factory.mktemp("cluster") / "kubeconfig"
    kubeconfig.write_text(_kubeconfig(cluster[0]["cluster"], token))
    return kubeconfig


def _kubeconfig(cluster: dict[str, str], token: str) -> str:
    """A kubeconfig; JSON is YAML, too."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
    )
