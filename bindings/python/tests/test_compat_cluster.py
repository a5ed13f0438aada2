"""The drop-in modules on agent-sandbox, and their names of plain Pods."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType]
from k8s_agent_sandbox import SandboxClient  # pyright: ignore[reportPrivateImportUsage]
from k8s_agent_sandbox.models import SandboxDirectConnectionConfig
from kubernetes.config import kube_config

from objects import router_url
from sandpod import SandboxNotFoundError
from sandpod.compat import (
    langchain_agent_sandbox,
    langchain_k8s,
    langchain_kubernetes,
    langchain_kubernetes_agent_sandbox,
)
from scripted import calls, execute, script, thread, tool_results

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from sandpod import KubernetesProviderConfig

    Config = Callable[..., KubernetesProviderConfig]

pytestmark = pytest.mark.cluster

POOL = "python-pool"


class Cluster:
    """The namespace of the tests, with administrator access."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        admin = os.environ["SANDPOD_TEST_KUBECONFIG"]
        command = ["kubectl", f"--kubeconfig={admin}", f"--namespace={self.namespace}", *arguments]
        return subprocess.run(command, input=text, check=True, capture_output=True, text=True).stdout

    def get(self, kind: str, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", kind, *arguments, "--output=json"))

    def claims(self, *arguments: str) -> list[str]:
        return self.kubectl("get", "sandboxclaims", "--output=name", *arguments).split()

    def lose(self, claim: str) -> None:
        """Delete a claim without its owner, and wait until its Pod is deleted."""
        pod = self.get(f"sandboxclaim/{claim}")["status"]["sandbox"]["name"]
        self.kubectl("delete", f"sandboxclaim/{claim}")
        self.kubectl("wait", "--for=delete", f"pod/{pod}", "--timeout=60s")


@pytest.fixture
def cluster(agent_sandbox_config: Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A namespace with the template `python` and its kubeconfig in KUBECONFIG. Fails if claims are left."""
    config = agent_sandbox_config()
    monkeypatch.setenv("KUBECONFIG", str(config.kubeconfig))
    # The SDK's client read the variable on import.
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(config.kubeconfig))
    cluster = Cluster(config.namespace)
    yield cluster
    if left := cluster.claims():
        cluster.kubectl("delete", *left)
    assert left == []


@pytest.fixture
def pool(cluster: Cluster) -> Iterator[str]:
    """A warm pool of the template with one ready sandbox."""
    pool = {
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxWarmPool",
        "metadata": {"name": POOL},
        "spec": {"replicas": 1, "sandboxTemplateRef": {"name": "python"}},
    }
    cluster.kubectl("apply", "--filename=-", text=json.dumps(pool))
    cluster.kubectl("wait", f"sandboxwarmpool/{POOL}", "--for=jsonpath={.status.readyReplicas}=1", "--timeout=60s")
    yield POOL
    cluster.kubectl("delete", f"sandboxwarmpool/{POOL}")


def deep_agent(model: Any, backend: Any) -> Any:
    return create_deep_agent(model, backend=backend)  # pyright: ignore[reportUnknownVariableType]


# langchain-k8s


def test_h2_h5_h6_a_claim_is_created_on_demand_and_deleted_by_stop(cluster: Cluster) -> None:
    labels = {"session": "abc-123", "example.com/team": "platform"}
    backend = langchain_k8s.KubernetesSandbox(template_name="python", namespace=cluster.namespace, labels=labels)
    assert backend.claim_name is None
    assert cluster.claims() == [], "the first call creates the claim"
    assert backend.execute("echo out; echo err >&2").output == "out\nerr\n"
    backend.start()
    assert backend.id == backend.claim_name
    for selector in ("session=abc-123", "example.com/team=platform"):
        assert cluster.claims(f"--selector={selector}") == [
            f"sandboxclaim.extensions.agents.x-k8s.io/{backend.claim_name}"
        ]
    backend.stop()
    backend.stop()
    assert cluster.claims() == []


def test_h4_h5_a_claim_that_was_kept_is_found_again_with_its_files_and_labels(cluster: Cluster) -> None:
    def backend(**options: Any) -> langchain_k8s.KubernetesSandbox:
        return langchain_k8s.KubernetesSandbox(template_name="python", namespace=cluster.namespace, **options)

    first = backend(skip_cleanup=True, labels={"team": "platform"})
    assert first.write("/workspace/previous-work.py", "print(1)\n").error is None
    name = first.claim_name
    first.stop()

    again = backend(claim_name=name, labels={"team": "other"})
    assert again.claim_name == name
    again.start()
    assert again.execute("cat /workspace/previous-work.py").output == "print(1)\n"
    assert len(cluster.claims("--selector=team=platform")) == 1
    again.stop()


def test_h3_without_reuse_each_start_creates_a_sandbox_and_a_loss_is_final(cluster: Cluster) -> None:
    backend = langchain_k8s.KubernetesSandbox(template_name="python", namespace=cluster.namespace, reuse_sandbox=False)
    with backend:
        first = backend.id
        assert backend.execute("touch /workspace/mine").exit_code == 0
    with backend:
        assert backend.id != first
        assert backend.execute("ls /workspace").output == ""
        cluster.lose(backend.id)
        assert [backend.execute("true").exit_code for _ in range(2)] == [None, None]


def test_e7_the_next_call_replaces_a_lost_sandbox_and_no_command_runs_twice(cluster: Cluster) -> None:
    with langchain_k8s.KubernetesSandbox(template_name="python", namespace=cluster.namespace) as backend:
        cluster.lose(backend.id)
        lost = backend.execute("touch /workspace/once")
        assert lost.exit_code is None
        assert "gone" in lost.output
        replaced = backend.execute("ls /workspace").output
        assert "its files and processes are gone" in replaced
        assert "once" not in replaced


async def test_concurrent_first_calls_create_one_claim(cluster: Cluster) -> None:
    backend = langchain_k8s.KubernetesSandbox(template_name="python", namespace=cluster.namespace)
    done = await asyncio.gather(*(backend.aexecute(f"echo {number}") for number in range(5)))
    assert [each.output for each in done] == [f"{number}\n" for number in range(5)]
    assert len(cluster.claims()) == 1
    backend.stop()


def test_g1_g2_the_sandboxs_kernel_enforces_prefixes_and_the_root(cluster: Cluster) -> None:
    with langchain_k8s.KubernetesSandbox(
        template_name="python",
        namespace=cluster.namespace,
        virtual_mode=True,
        root_dir="/workspace",
        allow_prefixes=["/workspace/ok"],
    ) as backend:
        assert backend.write("/ok/a.txt", "x").path == "/ok/a.txt"
        assert "is not under any allowed prefix: ('/workspace/ok/',)" in str(backend.write("/no", "x").error)
        assert backend.execute("ln -s /etc /workspace/ok/out").exit_code == 0
        assert backend.read("/ok/out/passwd").error is not None, "no link leads out"


def test_a_newer_versions_arguments_reach_the_sandbox(cluster: Cluster, pool: str) -> None:
    with langchain_k8s.KubernetesSandbox(
        warmpool_name=pool,
        namespace=cluster.namespace,
        env={"COLOUR": "blue"},
        shutdown_after_seconds=3600,
        pod_labels={"sandbox.users.io/team": "search"},
        pod_annotations={"example.com/note": "hello"},
    ) as backend:
        assert backend.execute("echo $COLOUR").output == "blue\n"
        claim = cluster.get(f"sandboxclaim/{backend.claim_name}")
        assert claim["spec"]["warmPoolRef"] == {"name": pool}
        assert "shutdownTime" in claim["spec"]["lifecycle"]
        (pod,) = cluster.get("pods", "--selector=sandbox.users.io/team=search")["items"]
        assert pod["metadata"]["annotations"]["example.com/note"] == "hello"


def test_k1_a_sandbox_is_claimed_from_the_named_pool(cluster: Cluster, pool: str) -> None:
    (waiting,) = cluster.get("sandboxes")["items"]
    with langchain_k8s.KubernetesSandbox(warmpool_name=pool, namespace=cluster.namespace) as backend:
        claim = cluster.get(f"sandboxclaim/{backend.claim_name}")
        assert claim["status"]["sandbox"]["name"] == waiting["metadata"]["name"]


# Handles of agent-sandbox's SDK.


@pytest.fixture
def router(cluster: Cluster) -> str:
    """The router's URL."""
    del cluster
    return router_url()


@pytest.fixture
def client(router: str) -> SandboxClient[Any]:
    """The SDK's client, which connects through the router."""
    return SandboxClient(connection_config=SandboxDirectConnectionConfig(api_url=router))


@pytest.mark.parametrize("way", ["adopted", "driven"])
def test_h1_h9_a_real_handle_is_adopted_or_driven_and_its_owner_deletes_it(
    way: str, client: SandboxClient[Any], cluster: Cluster, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = client.create_sandbox(pool, namespace=cluster.namespace)
    if way == "driven":
        monkeypatch.setenv("KUBECONFIG", "/nowhere")
    backend = langchain_kubernetes_agent_sandbox.KubernetesAgentSandbox(sandbox=handle, timeout=20)
    assert backend.id == handle.sandbox_id
    assert backend.sandbox.is_active
    turns = script(
        calls(("write_file", {"file_path": "/workspace/a.txt", "content": "one\n"})),
        calls(("edit_file", {"file_path": "/workspace/a.txt", "old_string": "one", "new_string": "two"})),
        calls(("grep", {"pattern": "two", "path": "/workspace"})),
        execute("cat /workspace/a.txt | tr a-z A-Z"),
        "done",
    )
    results = tool_results(deep_agent(turns, backend).invoke({"messages": ["go"]}))
    assert "/workspace/a.txt" in results[2]
    assert results[3].startswith("TWO\n")
    timed_out = backend.execute("echo before; sleep 60", timeout=1)
    assert (timed_out.exit_code, timed_out.output) == (124, "before\nCommand timed out after 1s")
    assert backend.execute("cat /proc/[0-9]*/stat | grep '(sleep) [^Z]'").output == "", "it is killed"
    content = bytes(range(256)) * 1000
    assert backend.upload_files([("/workspace/b", content)])[0].error is None
    assert backend.download_files(["/workspace/b"])[0].content == content
    pod = handle.get_pod_name()
    backend.sandbox.terminate()
    cluster.kubectl("wait", "--for=delete", f"pod/{pod}", "--timeout=60s")
    gone = backend.execute("true")
    assert gone.exit_code is None
    assert gone.output


def test_e9_shell_state_is_kept_between_turns(client: SandboxClient[Any], cluster: Cluster, pool: str) -> None:
    handle = client.create_sandbox(pool, namespace=cluster.namespace)
    backend = langchain_kubernetes_agent_sandbox.KubernetesAgentSandbox(sandbox=handle)
    assert backend.execute("mkdir /tmp/sub && cd /tmp/sub && export GREETING=hello").exit_code == 0
    assert backend.execute("echo $GREETING in $PWD").output == "hello in /tmp/sub\n"
    backend.sandbox.terminate()


def test_h1_stop_keeps_a_handles_claim_and_the_next_call_returns_a_message(
    client: SandboxClient[Any], cluster: Cluster, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = client.create_sandbox(pool, namespace=cluster.namespace)
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    with langchain_k8s.KubernetesSandbox(sandbox=handle, command_timeout=20) as backend:
        assert backend.claim_name == handle.claim_name
        assert backend.execute("echo hello").output == "hello\n"
    assert len(cluster.claims()) == 1
    closed = backend.execute("true")
    assert closed.exit_code is None
    assert "closed" in closed.output
    cluster.kubectl("delete", f"sandboxclaim/{handle.claim_name}")


@pytest.mark.parametrize("source", [{}, {"template_name": "python"}])
def test_h5_a_claim_that_another_program_made_is_found_by_its_name(
    source: dict[str, Any], client: SandboxClient[Any], cluster: Cluster, pool: str
) -> None:
    handle = client.create_sandbox(pool, namespace=cluster.namespace)
    handle.files.write("from-the-sdk", "hello\n")
    backend = langchain_k8s.KubernetesSandbox(
        claim_name=handle.claim_name, namespace=cluster.namespace, skip_cleanup=True, allow_prefixes=["/app"], **source
    )
    with backend:
        assert backend.execute("cat /app/from-the-sdk").output == "hello\n"
        assert backend.write("/workspace/no", "").error is not None
    client.delete_sandbox(handle.claim_name, cluster.namespace)


def test_h7_a_named_sandbox_is_created_once_and_found_again_with_its_files(
    client: SandboxClient[Any], cluster: Cluster, pool: str
) -> None:
    def turn(**source: Any) -> langchain_k8s.KubernetesSandbox:
        return langchain_k8s.create_kubernetes_sandbox(
            client=client,
            claim_name="sandbox-thread-1",
            namespace=cluster.namespace,
            labels={"thread_id": "1"},
            allow_prefixes=["/workspace/"],
            **source,
        )

    first = turn(template_name="python")
    assert first.write("/workspace/a.txt", "one").error is None
    assert first.write("/tmp/a.txt", "one").error is not None  # noqa: S108
    second = turn(warmpool_name=pool)
    assert second.id == "sandbox-thread-1"
    assert second.execute("cat /workspace/a.txt").output == "one"
    assert len(cluster.claims("--selector=thread_id=1")) == 1
    client.delete_sandbox("sandbox-thread-1", cluster.namespace)


def test_h7_a_claim_that_does_not_become_ready_is_deleted(client: SandboxClient[Any], cluster: Cluster) -> None:
    with pytest.raises(Exception, match="no-such-pool"):
        langchain_k8s.create_kubernetes_sandbox(
            client=client,
            claim_name="never",
            warmpool_name="no-such-pool",
            namespace=cluster.namespace,
            sandbox_ready_timeout=5,
        )
    assert cluster.claims() == []


# langchain-kubernetes


def test_i2_to_i9_a_provider_supports_all_operations_on_agent_sandbox(cluster: Cluster, pool: str) -> None:
    config = langchain_kubernetes.KubernetesProviderConfig(
        template_name="python", namespace=cluster.namespace, warm_pool_name=pool, default_labels={"env": "test"}
    )
    provider = langchain_kubernetes.KubernetesProvider(config)
    assert provider.pool_status() == langchain_kubernetes.WarmPoolStatus(available=1, active=0, total=1, target=1)
    sandbox = provider.get_or_create(labels={"customer": "acme", "thread-id": "user@example.com"})
    assert sandbox.execute("python3 -c 'print(2 + 2)'").output == "4\n"
    assert provider.reconnect(sandbox.id).execute("true").exit_code == 0
    assert provider.get_or_create(sandbox_id=sandbox.id).id == sandbox.id

    (info,) = provider.list(labels={"customer": "acme"}).sandboxes
    assert (info.id, info.status, info.thread_id) == (sandbox.id, "running", "user@example.com")
    assert provider.list(labels={"customer": "other"}).sandboxes == []
    metadata = cluster.get(f"sandboxclaim/{sandbox.id}")["metadata"]
    prefix = "langchain-kubernetes.bitkaio.com/"
    expected = {"managed-by": "langchain-kubernetes", "env": "test", "customer": "acme"}
    assert expected.items() <= {key.removeprefix(prefix): value for key, value in metadata["labels"].items()}.items()
    assert len(metadata["labels"][f"{prefix}thread-id"]) == 12
    assert metadata["annotations"][f"{prefix}thread-id-original"] == "user@example.com"
    created = datetime.fromisoformat(metadata["annotations"][f"{prefix}created-at"])
    assert created.utcoffset() == timedelta(0)
    assert f"{prefix}last-activity" in info.annotations
    stats = provider.stats()
    assert (stats.total, stats.running, stats.thread_ids) == (1, 1, ["user@example.com"])

    assert provider.cleanup().deleted == []
    assert provider.cleanup(max_idle_seconds=0).deleted == [sandbox.id]
    provider.delete(sandbox_id=sandbox.id)
    with pytest.raises(SandboxNotFoundError):
        provider.reconnect(sandbox.id)


@contextmanager
def kubectl_proxy(kubeconfig: Path) -> Generator[str]:
    """The URL of `kubectl proxy` with the kubeconfig's account."""
    command = ["kubectl", f"--kubeconfig={kubeconfig}", "proxy", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
        try:
            assert proxy.stdout is not None
            yield f"http://{proxy.stdout.readline().rpartition(' ')[2].strip()}"
        finally:
            proxy.terminate()


@pytest.mark.parametrize("who", ["the proxy", "a token"])
def test_b5_the_configured_api_server_is_used(
    who: str, cluster: Cluster, router: str, agent_sandbox_config: Config, tmp_path: Path
) -> None:
    config = agent_sandbox_config()
    kubeconfig = json.loads(Path(str(config.kubeconfig)).read_text())
    token = kubeconfig["users"][0]["user"]["token"]
    if who == "a token":
        kubeconfig["users"][0]["user"] = {"token": "invalid"}
    (file := tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
    with kubectl_proxy(file) as url:
        provider = langchain_kubernetes.KubernetesProvider(
            langchain_kubernetes.KubernetesProviderConfig(
                template_name="python",
                namespace=cluster.namespace,
                kube_api_url=url,
                kube_token=token if who == "a token" else None,
                allow_insecure_api_server=who == "a token",
                connection_mode="direct",
                api_url=router,
                guest_token_file=config.guest_token_file,
            )
        )
        sandbox = provider.get_or_create()
        assert sandbox.execute("echo hello").output == "hello\n"
        assert [info.id for info in provider.list().sandboxes] == [sandbox.id]
        assert provider.reconnect(sandbox.id).id == sandbox.id
        provider.delete(sandbox_id=sandbox.id)
        with pytest.raises(SandboxNotFoundError):
            provider.reconnect(sandbox.id)


def test_d4_d14_j1_plain_pods_have_the_names_and_labels_of_the_older_package(raw_config: Config) -> None:
    config = raw_config(image="sandpod.test/busybox:1")
    cluster = Cluster(config.namespace)
    provider = langchain_kubernetes.KubernetesProvider(
        langchain_kubernetes.KubernetesProviderConfig(
            mode="raw",
            namespace=config.namespace,
            kubeconfig=config.kubeconfig,
            image=config.image,
            cpu_request="1m",
            memory_request="8Mi",
        )
    )
    sandbox = provider.get_or_create(labels={"customer": "acme"})
    assert len(sandbox.id) == 8
    int(sandbox.id, 16)
    pod = cluster.get(f"pod/deepagents-{sandbox.id}")
    assert {
        "app.kubernetes.io/managed-by": "deepagents",
        "app.kubernetes.io/component": "sandbox",
        "deepagents.langchain.com/sandbox-id": sandbox.id,
        "langchain-kubernetes.bitkaio.com/managed-by": "langchain-kubernetes",
        "langchain-kubernetes.bitkaio.com/customer": "acme",
    }.items() <= pod["metadata"]["labels"].items()
    assert [container["name"] for container in pod["spec"]["containers"]] == ["sandbox"]
    policy = cluster.get(f"networkpolicy/deepagents-deny-all-{sandbox.id}")
    assert policy["spec"]["podSelector"]["matchLabels"] == {"deepagents.langchain.com/sandbox-id": sandbox.id}

    cluster.kubectl("delete", f"pod/deepagents-{sandbox.id}")
    again = provider.get_or_create(sandbox_id=sandbox.id)
    assert again.id == sandbox.id
    found = cluster.kubectl("get", "pods", "-l", "app.kubernetes.io/managed-by=deepagents", "--output=name").split()
    assert found == [f"pod/deepagents-{sandbox.id}-2"]
    assert [info.id for info in provider.list(labels={"customer": "acme"}).sandboxes] == [sandbox.id]
    provider.delete(sandbox_id=sandbox.id)
    cluster.kubectl("wait", "--for=delete", f"networkpolicy/deepagents-deny-all-{sandbox.id}", "--timeout=60s")


# langchain-agent-sandbox


def test_h10_g6_a_template_creates_a_sandbox_for_a_context_with_a_policy(cluster: Cluster) -> None:
    recorded: list[tuple[str, str]] = []
    backend = langchain_agent_sandbox.AgentSandboxBackend.from_template(
        "python", namespace=cluster.namespace, root_dir="/workspace"
    )
    secured = langchain_agent_sandbox.SandboxPolicyWrapper(
        backend,
        deny_prefixes=["/etc"],
        deny_commands=["rm -rf"],
        audit_log=lambda operation, target, _: recorded.append((operation, target)),
    )
    with secured:
        assert len(cluster.claims()) == 1
        assert secured.id == backend.id == cluster.claims()[0].rpartition("/")[2]
        assert secured.write("/a.txt", "one\n").error is None
        assert secured.write("/a.txt", "two\n").error == "File '/a.txt' already exists"
        assert secured.write("/etc/x", "").error == "Policy denied: writes not allowed under '/etc/x'"
        assert secured.read("/a.txt") == "1: one"
        assert [entry["path"] for entry in secured.ls_info("/")] == ["/a.txt"]
        assert [entry["path"] for entry in secured.glob_info("*.txt")] == ["/a.txt"]
        assert secured.grep_raw("one", "/") == [{"path": "/a.txt", "line": 1, "text": "one"}]
        assert secured.execute("cat /workspace/a.txt").output == "one\n"
        assert secured.execute("rm -rf /").exit_code == 1
    assert recorded[0] == ("write", "/a.txt")
    assert cluster.claims() == []


def test_k1_k3_a_warm_pool_is_adopted_from_by_name_or_by_its_template(cluster: Cluster, pool: str) -> None:
    by_name = langchain_agent_sandbox.WarmPoolBackend.from_warmpool("python", cluster.namespace, pool)
    by_template = langchain_agent_sandbox.WarmPoolBackend.from_warmpool("python", cluster.namespace)
    for backend, named in ((by_name, True), (by_template, False)):
        cluster.kubectl("wait", f"sandboxwarmpool/{pool}", "--for=jsonpath={.status.readyReplicas}=1", "--timeout=60s")
        with backend:
            claim = cluster.get(f"sandboxclaim/{backend.id}")
            assert claim["spec"]["warmPoolRef"]["name"] == pool
            assert claim["status"]["sandbox"]["name"] != backend.id, "it existed before its claim"
            assert backend.get_adoption_info() == {"warmpool_name": pool if named else None, "from_warmpool": named}


async def test_h11_a_factorys_threads_have_claims_of_their_own(cluster: Cluster) -> None:
    factory = langchain_agent_sandbox.create_sandbox_backend_factory(
        "python", namespace=cluster.namespace, root_dir="/workspace"
    )

    async def run(name: str) -> str:
        turns = script(
            calls(("write_file", {"file_path": "/a.txt", "content": f"{name}\n"})), execute("cat a.txt"), "done"
        )
        return tool_results(await deep_agent(turns, factory).ainvoke({"messages": ["go"]}, thread(name)))[1]

    async with factory:
        alice, bob = await asyncio.gather(run("alice"), run("bob"))
        assert alice.startswith("alice\n")
        assert bob.startswith("bob\n")
        assert len(cluster.claims()) == 2
        older = factory(SimpleNamespace(config=thread("alice")))
        assert older.id in cluster.claims()[0] + cluster.claims()[1]
        assert await older.aread("/a.txt") == "1: alice"
    assert cluster.claims() == []
