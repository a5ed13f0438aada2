"""Selects the calls that report lost files: those whose result a model or a program reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from langgraph.config import get_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandpod import _native

_HOOKS = {"before_agent", "before_model", "after_model", "after_agent"}
"""The suffixes, after a dot, of the names of LangChain's middleware nodes."""

_OWN_DIRECTORIES = ("/large_tool_results/", "/conversation_history/", "/blobs/")
"""The directories where Deep Agents' middleware stores large content."""


def reporting(sandbox: _native.Sandbox, written: Sequence[str]) -> _native.Sandbox:
    """Return the sandbox for a call that writes the files `written`.

    Calls of an agent's middleware outside its tools do not report lost files: the model would not see the report, and
    the middleware would drop the conversation's skills or memory, or end the run.
    """
    if sandbox.has_report() and _is_middleware(written):
        return sandbox.without_reports()
    return sandbox


def _is_middleware(written: Sequence[str]) -> bool:
    try:
        metadata = get_config().get("metadata") or {}
    except RuntimeError:
        return False
    if "ls_integration" not in metadata:
        return False
    node = str(metadata.get("langgraph_node"))
    is_hook = node == "model" or node.rpartition(".")[2] in _HOOKS
    return is_hook or any(path.startswith(_OWN_DIRECTORIES) for path in written)
