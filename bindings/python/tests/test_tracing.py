"""OpenTelemetry spans and `logging` records of operations, which contain no commands or file contents."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sandpod import KubernetesProvider, SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

    from conftest import SilentServer
    from sandpod import KubernetesProviderConfig, KubernetesSandbox

SECRET = "hunter2"  # noqa: S105 - what must not be seen


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """Receives every later span of this process."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Callable[[], list[ReadableSpan]]:
    """Returns our spans since the start of the test."""
    exporter.clear()
    return lambda: [span for span in exporter.get_finished_spans() if span.name.startswith("sandpod.")]


@pytest.fixture(scope="module")
def sandbox(local_config: Callable[..., KubernetesProviderConfig]) -> Iterator[KubernetesSandbox]:
    provider = KubernetesProvider(local_config())
    sandbox = provider.get_or_create()
    yield sandbox
    provider.delete(sandbox_id=sandbox.id)


async def test_each_operation_is_a_span_with_its_sandbox_below_the_callers(
    sandbox: KubernetesSandbox, spans: Callable[[], list[ReadableSpan]]
) -> None:
    with trace.get_tracer("test").start_as_current_span("caller") as caller:
        sandbox.write("/workspace/a.txt", SECRET)
        await sandbox.aexecute(f"echo {SECRET}; exit 3")
    seen = spans()
    assert [span.name for span in seen] == ["sandpod.write", "sandpod.execute"]
    for span in seen:
        assert span.parent is not None
        assert span.parent.span_id == caller.get_span_context().span_id
        assert (span.attributes or {})["sandpod.sandbox_id"] == sandbox.id
        assert SECRET not in span.to_json()
    assert (seen[1].attributes or {})["sandpod.exit_code"] == 3


def test_a_failed_span_has_only_the_error_code(
    sandbox: KubernetesSandbox, spans: Callable[[], list[ReadableSpan]]
) -> None:
    assert sandbox.read(f"/workspace/{SECRET}").error
    (span,) = spans()
    assert (span.status.is_ok, (span.attributes or {})["error.type"]) == (False, "not_found")
    assert SECRET not in span.to_json()


def test_provider_calls_and_transfers_are_spans_too(
    local_config: Callable[..., KubernetesProviderConfig], spans: Callable[[], list[ReadableSpan]], tmp_path: Path
) -> None:
    provider = KubernetesProvider(local_config())
    sandbox = provider.get_or_create()
    sandbox.narrowed({"deny_prefixes": ["/etc"], "deny_scope": "file_tools"}).ls("/workspace")
    sandbox.upload_directory(tmp_path, "/workspace/tree")
    provider.delete(sandbox_id=sandbox.id)
    names = ["get_or_create", "list", "upload_tree", "delete"]
    assert [span.name for span in spans()] == [f"sandpod.{name}" for name in names]
    assert (spans()[0].attributes or {})["sandpod.sandbox_id"] == sandbox.id


def test_a_failed_call_raises_the_same_error_with_a_span(
    provider: KubernetesProvider, server: SilentServer, spans: Callable[[], list[ReadableSpan]]
) -> None:
    server.refuse.set()
    with pytest.raises(SandboxError, match="you cannot do that"):
        provider.reconnect("sp-test")
    (span,) = spans()
    assert (span.attributes or {})["error.type"] == "denied"


def test_no_command_and_no_content_is_logged_above_debug(
    sandbox: KubernetesSandbox, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        sandbox.execute(f"echo {SECRET}; kill -9 $$")
        sandbox.execute(f"sleep 60 # {SECRET}", timeout=1)
        sandbox.write("/workspace/secret", SECRET)
        sandbox.write("/proc/nowhere", SECRET)
        sandbox.edit("/workspace/secret", SECRET, "")
        sandbox.edit("/workspace/secret", SECRET, "")
        "".join(map(str, sandbox.stream(f"echo {SECRET}")))
    assert SECRET not in caplog.text
