"""`langchain_kubernetes`, on a local sandbox."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from sandpod.compat import langchain_kubernetes
from scripted import calls, execute, script, thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandpod import KubernetesProviderConfig

    LocalConfig = Callable[..., KubernetesProviderConfig]


def test_langchain_kubernetes_also_has_the_older_names(local_config: LocalConfig) -> None:
    provider = langchain_kubernetes.KubernetesProvider(local_config())
    sandbox = provider.get_or_create(labels={"team": "search"})
    assert isinstance(sandbox, langchain_kubernetes.KubernetesSandbox)
    assert sandbox.write("/workspace/a.txt", "needle\n").error is None
    assert [entry["path"] for entry in sandbox.ls_info("/workspace")] == ["/workspace/a.txt"]
    assert [entry["path"] for entry in sandbox.glob_info("*.txt", "/workspace")] == ["/workspace/a.txt"]
    assert sandbox.grep_raw("needle", "/workspace") == [{"path": "/workspace/a.txt", "line": 1, "text": "needle"}]
    assert sandbox.grep_raw("needle", "/none") == "Error: Path '/none' not found"
    assert (sandbox.ls_info("/none"), sandbox.glob_info("*", "/none")) == ([], [])
    assert isinstance(provider.reconnect(sandbox.id), langchain_kubernetes.KubernetesSandbox)
    provider.delete(sandbox_id=sandbox.id)


def test_l5_a_managers_sandboxes_have_the_older_names(local_config: LocalConfig) -> None:
    with langchain_kubernetes.KubernetesSandboxManager(local_config()) as manager:
        sandbox = asyncio.run(manager.get_or_reconnect())
        assert isinstance(sandbox, langchain_kubernetes.KubernetesSandbox)
        assert sandbox.write("/workspace/a.txt", "needle\n").error is None
        assert sandbox.grep_raw("needle", "/workspace") == [{"path": "/workspace/a.txt", "line": 1, "text": "needle"}]
        narrowed = sandbox.narrowed({"deny_prefixes": ["/etc"], "deny_scope": "file_tools"})
        assert [entry["path"] for entry in narrowed.ls_info("/workspace")] == ["/workspace/a.txt"]

        backend = manager.backend()
        assert isinstance(backend, langchain_kubernetes.KubernetesSandbox)
        assert "no thread_id" in str(backend.grep_raw("needle", "/workspace"))
        seen: list[Any] = []

        def look() -> str:
            """Read the workspace."""
            seen.append(backend.glob_info("*.txt", "/workspace"))
            return "looked"

        turns = script(execute("echo > /workspace/b.txt"), calls(("look", {})), "done")
        manager.create_agent(turns, tools=[look]).invoke({"messages": ["go"]}, thread("1"))
        assert [entry["path"] for entry in seen[0]] == ["/workspace/b.txt"]


def test_c4_the_configuration_rejects_agent_sandbox_without_a_template() -> None:
    refusal = (
        "^template_name is required when mode='agent-sandbox'. Set KubernetesProviderConfig"
        r"\(template_name='my-template'\) or use mode='raw' for direct Pod management.$"
    )
    with pytest.raises(ValueError, match=refusal):
        langchain_kubernetes.KubernetesProviderConfig()
    with pytest.raises(ValueError, match=refusal):
        langchain_kubernetes.KubernetesProviderConfig(mode="agent-sandbox", warm_pool_name="pool")
    assert langchain_kubernetes.KubernetesProviderConfig(mode="raw").template_name is None


async def test_l7_a_missing_thread_id_is_a_runtime_error_as_in_the_older_package(local_config: LocalConfig) -> None:
    refusal = (
        "^KubernetesSandboxManager: no thread_id in LangGraph config. "
        r"Invoke with config=\{'configurable': \{'thread_id': '...'\}\}."
    )
    with langchain_kubernetes.KubernetesSandboxManager(local_config()) as manager:
        agent = manager.create_agent(script(execute("true"), "done"))
        with pytest.raises(RuntimeError, match=refusal):
            agent.invoke({"messages": ["go"]})
        with pytest.raises(RuntimeError, match=refusal):
            await manager.create_setup_node()({}, {})
