"""The life of a sandbox, for users' clusters: `K8S_INTEGRATION=1 pytest -m "raw_k8s or agent_sandbox"`.

`SANDBOX_NAMESPACE`, `SANDBOX_TEMPLATE`, `ROUTER_URL` and `SANDBOX_TIMEOUT` say where; without `K8S_INTEGRATION` it is
the cluster of all other tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import own_cluster
import sandpod
from sandpod import KubernetesProvider, SandboxNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandpod import KubernetesProviderConfig

    MakeConfig = Callable[..., KubernetesProviderConfig]

ROUTER = ("get", "service", "sandbox-router-svc", "--namespace=agent-sandbox-system")


@pytest.fixture(
    params=[
        pytest.param("raw", marks=[pytest.mark.raw_k8s]),
        pytest.param("agent-sandbox", marks=[pytest.mark.agent_sandbox]),
    ]
)
def config(request: pytest.FixtureRequest) -> KubernetesProviderConfig:
    """Return the configuration of these tests."""
    if own_cluster.WANTED:
        return own_cluster.config(request.param)
    if request.param == "raw":
        return request.getfixturevalue("raw_config")(image="sandpod.test/busybox:1")
    return request.getfixturevalue("agent_sandbox_config")()


@pytest.mark.cluster
@pytest.mark.integration
async def test_a_sandbox_is_created_used_found_listed_and_deleted(config: KubernetesProviderConfig) -> None:
    provider = KubernetesProvider(config)
    sandbox = provider.get_or_create(labels={"suite": "integration"})
    try:
        assert sandbox.execute("echo hello").output == "hello\n"
        assert sandbox.write("/workspace/note", "kept").error is None
        assert (await (await provider.areconnect(sandbox.id)).aexecute("cat /workspace/note")).output == "kept"
        listed = [info.id for info in provider.list(labels={"suite": "integration"}).sandboxes]
        assert sandbox.id in listed
    finally:
        provider.delete(sandbox_id=sandbox.id)
    with pytest.raises(SandboxNotFoundError):
        provider.reconnect(sandbox.id)


@pytest.mark.cluster
@pytest.mark.parametrize("marker", ["raw_k8s", "agent_sandbox", "agent_sandbox through the router"])
def test_variables_select_the_cluster_and_markers_the_tests(
    marker: str, raw_config: MakeConfig, agent_sandbox_config: MakeConfig
) -> None:
    marker, *through_router = marker.split(" ", 1)
    config = raw_config() if marker == "raw_k8s" else agent_sandbox_config()
    variables = {name: value for name, value in os.environ.items() if name != "SANDPOD_TEST_KUBECONFIG"} | {
        "K8S_INTEGRATION": "1",
        "KUBECONFIG": str(config.kubeconfig),
        "PYTHONPATH": str(Path(sandpod.__file__).parents[1]),
        "SANDBOX_NAMESPACE": config.namespace,
    }
    if marker == "raw_k8s":
        variables["SANDPOD_IMAGE"] = "sandpod.test/busybox:1"
    else:
        variables["SANDBOX_TEMPLATE"] = str(config.template_name)
    if through_router:
        variables |= {"ROUTER_URL": _router_url(), "SANDPOD_GUEST_TOKEN_FILE": str(config.guest_token_file)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", f"integration and {marker}", __file__]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=variables)
    assert "1 passed" in done.stdout, done.stdout


def _router_url() -> str:
    address = subprocess.run(
        ["kubectl", *ROUTER, "--output=jsonpath={.spec.clusterIP}"],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"KUBECONFIG": os.environ["SANDPOD_TEST_KUBECONFIG"]},
    )
    return f"http://{address.stdout}:8080"


def test_without_a_cluster_tests_are_skipped_and_name_the_missing_variable() -> None:
    missing = {"K8S_INTEGRATION", "SANDPOD_TEST_KUBECONFIG"}
    variables = {name: value for name, value in os.environ.items() if name not in missing}
    variables["PYTHONPATH"] = str(Path(sandpod.__file__).parents[1])
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "-m", "integration", __file__]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=variables)
    assert "2 skipped" in done.stdout, done.stdout
    assert "K8S_INTEGRATION=1" in done.stdout


def test_an_api_url_selects_the_direct_connection_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOX_TEMPLATE", "from-env")
    monkeypatch.setenv("SANDBOX_NAMESPACE", "agents")
    monkeypatch.setenv("ROUTER_URL", "http://router:8080")
    monkeypatch.setenv("SANDBOX_TIMEOUT", "7")
    config = own_cluster.config("agent-sandbox")
    assert (config.template_name, config.namespace, config.startup_timeout_seconds) == ("from-env", "agents", 7)
    assert (config.connection_mode, config.api_url) == ("direct", "http://router:8080")
    assert own_cluster.config("raw").namespace == "agents"
