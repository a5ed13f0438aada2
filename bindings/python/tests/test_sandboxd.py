"""`SandboxdBackend` of langchain-k8s on agent-sandbox's second runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType]

from sandpod.compat.langchain_k8s import SandboxdBackend
from scripted import calls, execute, script, tool_results
from stage import in_places

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stage import Place

pytestmark = [pytest.mark.cluster, in_places("sandboxd-by-exec")]


@pytest.fixture
def backend(place: Place) -> Iterator[SandboxdBackend]:
    with SandboxdBackend(warmpool_name=place.pool, namespace=place.namespace, enable_capture_offload=True) as backend:
        yield backend


def test_a_page_has_its_last_line_break_and_a_missing_file_its_code(backend: SandboxdBackend) -> None:
    assert backend.write("/workspace/src/a.py", "alpha\nbeta\n").error is None
    page = backend.read("/workspace/src/a.py")
    assert page.file_data is not None
    assert page.file_data["content"] == "alpha\nbeta\n"
    missing = "/workspace/none"
    errors = (backend.read(missing).error, backend.edit(missing, "a", "b").error, backend.delete(missing).error)
    assert errors == ("file_not_found",) * 3
    outside = "Path '/etc/passwd' is outside sandboxd root '/workspace'"
    assert backend.read("/etc/passwd").error == backend.write("/etc/passwd", "x").error == outside


def test_an_agents_long_output_is_stored_below_the_root_and_readable(backend: SandboxdBackend) -> None:
    long = execute("seq 100000")
    pointer = f"/large_tool_results/{long.tool_calls[0]['id']}"
    turns = script(long, calls(("read_file", {"file_path": pointer, "offset": 99998})), "done")
    agent: Any = create_deep_agent(model=turns, backend=backend)  # pyright: ignore[reportUnknownVariableType]
    results = tool_results(agent.invoke({"messages": ["go"]}))
    assert pointer in results[0]
    assert len(results[0]) < 50_000, "the conversation has a preview"
    assert "100000" in results[1]
    assert backend.execute(f"wc -l < /workspace{pointer}").output.strip() == "100000"
