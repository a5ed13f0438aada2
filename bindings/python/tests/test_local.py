"""Local sandboxes."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from sandpod import CleanupResult, KubernetesProvider, KubernetesProviderConfig, SandboxNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

RECONNECT = """
import sys
from sandpod import KubernetesProvider, KubernetesProviderConfig
sandbox = KubernetesProvider(KubernetesProviderConfig(mode="local")).reconnect(sys.argv[1])
print(sandbox.execute("cat kept").output, end="")
"""


def test_a_sandbox_is_created_extended_found_by_another_process_and_deleted(
    local_config: Callable[..., KubernetesProviderConfig],
) -> None:
    provider = KubernetesProvider(local_config(default_labels={"team": "search"}, env={"GREETING": "hello"}))
    labels = {"thread-id": "1"}
    sandbox = provider.get_or_create(labels=labels, ttl_seconds=600, ttl_idle_seconds=300)

    assert sandbox.execute("echo $GREETING from $(pwd)").output == "hello from /workspace\n"
    assert sandbox.write("/workspace/kept", "still here\n").error is None
    (info,) = provider.list(labels=labels, status="running").sandboxes
    assert (info.id, info.namespace, info.thread_id) == (sandbox.id, "local", "1")
    assert info.labels == {"team": "search"} | labels
    assert info.annotations["sandpod.dev/limit-tasks"] == "4096 (RLIMIT_NPROC)"
    assert provider.stats().running == 1
    provider.extend(sandbox.id, 1200)
    assert provider.cleanup() == CleanupResult([], 1)
    found = subprocess.run([sys.executable, "-c", RECONNECT, sandbox.id], check=True, capture_output=True, text=True)
    assert found.stdout == "still here\n"
    provider.delete(sandbox_id=sandbox.id)
    with pytest.raises(SandboxNotFoundError):
        provider.reconnect(sandbox.id)


async def test_a_local_provider_has_async_methods(local_config: Callable[..., KubernetesProviderConfig]) -> None:
    provider = KubernetesProvider(local_config())
    sandbox = await provider.aget_or_create(labels={"team": "async"}, ttl_seconds=600)
    assert (await sandbox.aexecute("echo hello")).output == "hello\n"
    page = await provider.alist(labels={"team": "async"})
    assert [info.id for info in page.sandboxes] == [sandbox.id]
    assert (await provider.astats()).total >= 1
    await provider.aextend(sandbox.id, 60)
    assert sandbox.id not in (await provider.acleanup()).deleted
    again = await provider.areconnect(sandbox.id)
    assert again.id == sandbox.id
    await provider.adelete(sandbox_id=sandbox.id)


@pytest.mark.parametrize("options", [{"image": "busybox"}, {"namespace": "agents"}, {"volumes": [{"name": "v"}]}])
def test_options_without_local_support_are_rejected_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} has no effect on this machine"):
        KubernetesProvider(KubernetesProviderConfig(mode="local", **options))


def test_an_invalid_quantity_is_rejected_with_an_example() -> None:
    with pytest.raises(ValueError, match="512Mi"):
        KubernetesProvider(KubernetesProviderConfig(mode="local", memory_limit="much"))
