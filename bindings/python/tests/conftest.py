"""Fixtures: an API server that never answers, and a real cluster for tests marked `cluster`."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from handles import Handle
from objects import GUEST_TOKEN, guest_template, kubeconfig_of, kubeconfig_text, kubectl_of, stock_template
from sandpod import KubernetesProvider, KubernetesProviderConfig
from sandpod.compat import langchain_agent_sandbox, langchain_k8s
from stage import stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from xdist.scheduler import LoadScopeScheduling

    from stage import Place

ROOT = Path(__file__).resolve().parents[3]
ROLES = ROOT / "deploy" / "rbac"
ROLE = ROLES / "raw.yaml"
REFUSAL = b'{"kind":"Status","apiVersion":"v1","status":"Failure","message":"you cannot do that","code":403}'


class SilentServer:
    """An API server that accepts requests and answers none until `refuse` is called."""

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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Runs the tests of one place, and of one file, in one process: they share a template or other fixtures."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - only where xdist is used

    class ByPlaceOrFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            place = re.search(r"\w+-by-\w+", nodeid.partition("[")[2])
            return place[0] if place else nodeid.partition("::")[0]

    return ByPlaceOrFile(config, log)


@pytest.fixture
def server() -> Iterator[SilentServer]:
    server = SilentServer()
    yield server
    server.close()


@pytest.fixture
def kubeconfig(server: SilentServer, tmp_path: Path) -> Path:
    """A kubeconfig of the silent server."""
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig_text({"server": server.url}, None))
    return path


@pytest.fixture
def provider(kubeconfig: Path) -> KubernetesProvider:
    """A provider that connects to the silent server."""
    return KubernetesProvider(KubernetesProviderConfig(mode="raw", kubeconfig=str(kubeconfig)))


@pytest.fixture(scope="session")
def local_config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., KubernetesProviderConfig]]:
    """Creates configurations for local sandboxes in a state directory of the tests."""
    state = tmp_path_factory.mktemp("state")

    def config(**fields: object) -> KubernetesProviderConfig:
        return KubernetesProviderConfig(mode="local", **fields)  # pyright: ignore[reportArgumentType]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(state))
        yield config
    left = [path.name for path in (state / "sandpod" / "local").glob("*")]
    assert not left, f"left behind: {left}"


@pytest.fixture
def handle(tmp_path: Path) -> Handle:
    return Handle(tmp_path)


@pytest.fixture
def on_this_machine(
    local_config: Callable[..., KubernetesProviderConfig], monkeypatch: pytest.MonkeyPatch
) -> list[KubernetesProviderConfig]:
    """Creates sandboxes of the drop-in modules locally, and records the requested configurations."""
    asked: list[KubernetesProviderConfig] = []

    def make_provider(config: KubernetesProviderConfig, **_: bool) -> KubernetesProvider:
        asked.append(config)
        return KubernetesProvider(local_config(default_exec_timeout=config.default_exec_timeout))

    for module in (langchain_k8s, langchain_agent_sandbox):
        monkeypatch.setattr(module, "make_provider", make_provider)
    return asked


@pytest.fixture(scope="session")
def raw_config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., KubernetesProviderConfig]]:
    """Creates configurations for a namespace that enforces `restricted`, with our RBAC objects only."""
    if not os.environ.get("SANDPOD_TEST_KUBECONFIG"):
        pytest.skip(
            "SANDPOD_TEST_KUBECONFIG names no cluster; K8S_INTEGRATION=1 runs tests marked integration on kubectl's"
        )
    namespace = f"sandpod-python-{os.getpid()}-{int(time.time())}"

    kubectl = kubectl_of(namespace)
    kubectl("create", "namespace", namespace)
    try:
        kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
        kubectl("apply", "--filename=-", text=ROLE.read_text().replace("NAMESPACE", namespace))
        kubeconfig = kubeconfig_of("sandpod-raw", kubectl, tmp_path_factory)

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
    """Creates configurations for a template with the guest, with our RBAC objects only."""
    raw = KubernetesProvider(raw_config(image="sandpod.test/busybox:1"))
    # It installs the guest in the namespace.
    raw.delete(sandbox_id=raw.get_or_create().id)
    namespace = raw_config().namespace
    maps = kubectl_of(namespace)("get", "configmaps", "--output=name").split()
    guest = [name.removeprefix("configmap/") for name in maps if name.startswith("configmap/sandpod-guest-")]
    token = tmp_path_factory.mktemp("guest") / "token"
    token.write_bytes(GUEST_TOKEN)
    own = {"template_name": "python", "guest_token_file": str(token)}
    yield from _of_template(guest_template(guest), namespace, tmp_path_factory, own)


@pytest.fixture(scope="session")
def stock_runtime_config(
    raw_config: Callable[..., KubernetesProviderConfig], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., KubernetesProviderConfig]]:
    """Creates configurations for a template with agent-sandbox's first runtime and without our guest."""
    own = {"mode": "agent-sandbox", "template_name": "stock", "connection_mode": "in-cluster"}
    yield from _of_template(stock_template(), raw_config().namespace, tmp_path_factory, own)


@pytest.fixture(scope="session")
def staged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The place named by `stage.in_places`. Places are created one after the other."""
    if not os.environ.get("SANDPOD_TEST_KUBECONFIG"):
        pytest.skip("SANDPOD_TEST_KUBECONFIG names no cluster")
    namespace = f"sandpod-{request.param}-{os.getpid()}-{int(time.time())}"
    with stage(request.param, namespace, tmp_path_factory.mktemp("place") / "kubeconfig") as place:
        yield place


@pytest.fixture
def place(staged: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A place with its kubeconfig in KUBECONFIG. Fails if claims are left."""
    monkeypatch.setenv("KUBECONFIG", str(staged.kubeconfig))
    # The SDK's client read the variable on import.
    location = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
    monkeypatch.setattr(location, str(staged.kubeconfig))
    yield staged
    if left := staged.claims():
        staged.kubectl("delete", "sandboxclaims", *left)
    assert left == []


def _of_template(
    template: dict[str, object],
    namespace: str,
    tmp_path_factory: pytest.TempPathFactory,
    own: Mapping[str, str],
) -> Iterator[Callable[..., KubernetesProviderConfig]]:
    """Creates configurations for a template, with our RBAC objects; deletes the template at the end."""
    kubectl = kubectl_of(namespace)
    role = (ROLES / "agent-sandbox.yaml").read_text().replace("NAMESPACE", namespace)
    kubectl("apply", "--filename=-", text=role)
    kubectl("apply", "--filename=-", text=json.dumps(template))
    kubeconfig = kubeconfig_of("sandpod-agent-sandbox", kubectl, tmp_path_factory)

    def config(**fields: object) -> KubernetesProviderConfig:
        common = {"namespace": namespace, "kubeconfig": str(kubeconfig), **own}
        return KubernetesProviderConfig(**(common | fields))  # pyright: ignore[reportArgumentType]

    yield config
    KubernetesProvider(config()).cleanup()
    left = kubectl("get", "sandboxclaims,sandboxwarmpools", "--output=name")
    assert not left, f"left behind: {left}"
    kubectl("delete", "sandboxtemplate", own["template_name"])
