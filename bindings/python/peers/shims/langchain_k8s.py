"""Replaces the package `langchain_k8s` in its own tests: our module with the private names that the tests read."""

from __future__ import annotations

from typing import Any

from sandpod.compat import langchain_k8s as _ours
from sandpod.compat.langchain_k8s import *  # noqa: F403

__all__ = _ours.__all__  # pyright: ignore[reportUnsupportedDunderAll]

_Sandbox: Any = _ours.KubernetesSandbox
_stop = _Sandbox.stop


def _started(sandbox: Any) -> bool:
    if sandbox._owned is None:
        return not getattr(sandbox, "_left", False)
    return sandbox._owned._made is not None


def _owns_lifecycle(sandbox: Any) -> bool:
    return sandbox._owned is not None


def _claimed(sandbox: Any) -> Any:
    return sandbox._owned or sandbox._handle


def _leave(sandbox: Any) -> None:
    _stop(sandbox)
    sandbox._left = True


_Sandbox._started = property(_started)
_Sandbox._owns_lifecycle = property(_owns_lifecycle)
_Sandbox._sandbox = property(_claimed)
_Sandbox.stop = _leave
