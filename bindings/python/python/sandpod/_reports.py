"""Which calls report that a sandbox lost its files: those whose results a model or a program reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from langgraph.config import get_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandpod import _native

_HOOKS = {"before_agent", "before_model", "after_model", "after_agent"}
"""What LangChain's agents name the nodes of middleware by, after a dot."""

_OWN_DIRECTORIES = ("/large_tool_results/", "/conversation_history/", "/blobs/")
"""Where Deep Agents' middleware keeps what is too large for a conversation."""


def reporting(sandbox: _native.Sandbox, written: Sequence[str]) -> _native.Sandbox:
    """Return the sandbox for a call that writes the files `written`.

    What an agent's middleware does beside its tools reports nothing: it would keep the report from the model, give up
    the conversation's skills or memory for it, or end the run.
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
