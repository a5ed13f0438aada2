"""Details, listing, TTLs and cleanup of sandboxes."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from sandpod import (
    CleanupResult,
    KubernetesProvider,
    KubernetesProviderConfig,
    SandboxError,
    SandboxNotFoundError,
    WarmPoolStatus,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_an_unknown_status_is_rejected_with_the_valid_ones(kubeconfig: Path) -> None:
    provider = KubernetesProvider(KubernetesProviderConfig(mode="raw", kubeconfig=str(kubeconfig)))
    with pytest.raises(ValueError, match="'terminated'"):
        provider.list(status="done")  # type: ignore[arg-type]


def test_a_ttl_of_zero_and_reserved_labels_are_rejected(kubeconfig: Path) -> None:
    provider = KubernetesProvider(KubernetesProviderConfig(mode="raw", kubeconfig=str(kubeconfig)))
    with pytest.raises(ValueError, match="ttl is 0"):
        provider.get_or_create(ttl_seconds=0)
    with pytest.raises(ValueError, match='"id"'):
        provider.get_or_create(labels={"id": "x"})


@pytest.mark.cluster
def test_a_sandbox_is_listed_counted_extended_and_cleaned_up(
    raw_config: Callable[..., KubernetesProviderConfig],
) -> None:
    provider = KubernetesProvider(raw_config(image="sandpod.test/busybox:1", default_labels={"team": "search"}))
    labels = {"thread-id": "user@example.com/1"}
    sandbox = provider.get_or_create(labels=labels, ttl_seconds=600, ttl_idle_seconds=300)

    (info,) = provider.list(labels=labels, status="running").sandboxes
    assert (info.id, info.status, info.thread_id) == (sandbox.id, "running", "user@example.com/1")
    assert info.labels == {"team": "search"} | labels
    assert info.created_at is not None
    assert datetime.now(UTC) - datetime.fromisoformat(info.created_at) < timedelta(minutes=5)
    assert provider.list(labels={"team": "other"}).sandboxes == []
    stats = provider.stats()
    assert (stats.running, stats.idle, stats.thread_ids) == (1, 0, ["user@example.com/1"])
    assert provider.pool_status() == WarmPoolStatus(0, 0, 0, 0)
    provider.extend(sandbox.id, 1200)
    assert provider.cleanup() == CleanupResult([], 1)
    provider.delete(sandbox_id=sandbox.id)
    with pytest.raises(SandboxNotFoundError):
        provider.reconnect(sandbox.id)


@pytest.mark.cluster
def test_an_agent_sandbox_is_listed_counted_extended_and_cleaned_up(
    agent_sandbox_config: Callable[..., KubernetesProviderConfig],
) -> None:
    provider = KubernetesProvider(agent_sandbox_config(default_labels={"team": "agents"}, env={"COLOUR": "blue"}))
    sandbox = provider.get_or_create(labels={"thread-id": "t"}, ttl_seconds=600)
    assert sandbox.execute("echo $COLOUR").output == "blue\n"

    (info,) = provider.list(labels={"team": "agents"}, status="running").sandboxes
    assert (info.id, info.thread_id, info.connection) == (sandbox.id, "t", "exec")
    assert provider.reconnect(sandbox.id).execute("echo again").output == "again\n"
    assert provider.pool_status().active == 1
    provider.extend(sandbox.id, 1200)
    assert sandbox.id not in provider.cleanup().deleted
    provider.delete(sandbox_id=sandbox.id)
    with pytest.raises(SandboxNotFoundError):
        provider.reconnect(sandbox.id)


def test_only_agent_sandbox_mode_adopts_suspends_and_resumes(
    local_config: Callable[..., KubernetesProviderConfig],
) -> None:
    provider = KubernetesProvider(local_config())
    for refused in (provider.adopt, provider.suspend, provider.resume):
        with pytest.raises(SandboxError, match="mode='agent-sandbox'"):
            refused("a")


def test_only_an_adopting_provider_needs_no_template(kubeconfig: Path) -> None:
    config = KubernetesProviderConfig(kubeconfig=str(kubeconfig))
    with pytest.raises(ValueError, match="template_name is required"):
        KubernetesProvider(config)
    KubernetesProvider(config, only_adopts=True)


@pytest.mark.cluster
def test_a_claim_is_adopted_without_a_template(
    agent_sandbox_config: Callable[..., KubernetesProviderConfig],
) -> None:
    owner = KubernetesProvider(agent_sandbox_config())
    claim = owner.get_or_create()
    adopter = KubernetesProvider(agent_sandbox_config(template_name=None), only_adopts=True)
    assert adopter.adopt(claim.id).execute("echo adopted").output == "adopted\n"
    with pytest.raises(SandboxNotFoundError, match="SandboxClaim 'missing' not found"):
        adopter.adopt("missing")
    owner.delete(sandbox_id=claim.id)


@pytest.mark.cluster
async def test_a_sandbox_is_suspended_and_resumed(
    agent_sandbox_config: Callable[..., KubernetesProviderConfig],
) -> None:
    provider = KubernetesProvider(agent_sandbox_config(default_labels={"team": "sleepers"}))
    sandbox = await provider.aget_or_create()
    with pytest.raises(SandboxError, match=r"would lose its files: .*/workspace"):
        await provider.asuspend(sandbox.id)
    await provider.asuspend(sandbox.id, force=True)
    (info,) = (await provider.alist(labels={"team": "sleepers"}, status="suspended")).sandboxes
    assert (info.id, info.durable_dirs) == (sandbox.id, [])
    with pytest.raises(SandboxError, match="is suspended"):
        await provider.areconnect(sandbox.id)
    resumed = await provider.aresume(sandbox.id)
    assert (await resumed.aexecute("echo awake")).output == "awake\n"
    await provider.adelete(sandbox_id=sandbox.id)


@pytest.mark.cluster
def test_a_resumed_sandbox_gets_its_policy_again(
    agent_sandbox_config: Callable[..., KubernetesProviderConfig],
) -> None:
    provider = KubernetesProvider(agent_sandbox_config())
    policy = {"allow_prefixes": ["/workspace"]}
    sandbox = provider.get_or_create(policy=policy)
    provider.suspend(sandbox.id, force=True)
    with pytest.raises(ValueError, match="had a policy of its own"):
        provider.resume(sandbox.id)
    resumed = provider.resume(sandbox.id, policy=policy)
    assert resumed.write("/home/sandbox/a", "x").error
    assert not resumed.write("/workspace/a", "x").error
    provider.delete(sandbox_id=sandbox.id)


@pytest.mark.cluster
async def test_a_provider_of_raw_mode_has_async_methods(raw_config: Callable[..., KubernetesProviderConfig]) -> None:
    provider = KubernetesProvider(raw_config(image="sandpod.test/busybox:1"))
    sandbox = await provider.aget_or_create(labels={"team": "async"}, ttl_seconds=600)
    page = await provider.alist(labels={"team": "async"})
    assert [info.id for info in page.sandboxes] == [sandbox.id]
    assert page.cursor is None
    assert (await provider.astats()).total >= 1
    assert (await provider.apool_status()).target == 0
    await provider.aextend(sandbox.id, 60)
    assert sandbox.id not in (await provider.acleanup()).deleted
    await provider.adelete(sandbox_id=sandbox.id)


@pytest.mark.cluster
def test_a_pool_is_filled_and_its_pods_are_claimed(raw_config: Callable[..., KubernetesProviderConfig]) -> None:
    provider = KubernetesProvider(raw_config(image="sandpod.test/busybox:1", warm_pool_size=1))
    assert provider.pool_status() == WarmPoolStatus(0, 0, 0, 1)
    provider.delete(sandbox_id=provider.get_or_create().id)
    deadline = time.monotonic() + 60
    while provider.pool_status().available == 0:
        assert time.monotonic() < deadline, provider.pool_status()
        time.sleep(0.2)
    (waiting,) = provider.list(status="warm").sandboxes
    sandbox = provider.get_or_create(labels={"team": "pool"})
    provider.close()

    assert sandbox.execute("echo hello").output == "hello\n"
    (info,) = provider.list(labels={"team": "pool"}).sandboxes
    assert (info.annotations["sandpod.dev/pod-name"], info.status) == (waiting.id, "running")
    assert provider.pool_status().active == 1
    assert (provider.stats().warm, provider.stats().running) == (provider.pool_status().available, 1)
    provider.delete(sandbox_id=sandbox.id)
    provider.cleanup(max_idle_seconds=0)
    assert provider.list(status="warm").sandboxes == []
