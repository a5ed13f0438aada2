"""The registry of conversation threads and their sandboxes, a wrapper of the native one."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sandpod import _native
from sandpod._tracing import traced
from sandpod.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandpod.config import KubernetesProviderConfig

SCOPE_LABEL = "scope"
SHUTDOWN_TIMEOUT = 25.0
"""Seconds to delete all sandboxes of a process; Kubernetes gives a Pod 30 to terminate."""


class NoThreadError(SandboxError, ValueError, RuntimeError):
    """A call outside any conversation thread, which has no sandbox."""

    def __init__(self, message: str, code: str = "no_thread") -> None:
        """Create the error."""
        super().__init__(message, code)


def default_scope(config: KubernetesProviderConfig, labels: dict[str, str]) -> str:
    """Return the scope of managers that make the same sandboxes in the same namespace."""
    return _native.default_scope(config.mode, json.dumps(config.explicit()), labels)


@dataclass(frozen=True)
class SandboxSettings:
    """The settings of a thread's new sandbox."""

    labels: dict[str, str]
    ttl_seconds: int | None
    ttl_idle_seconds: int | None
    recreate: bool


@dataclass
class Threads:
    """The sandboxes of a scope's threads. Every process computes the same id for a thread."""

    provider: Callable[[], _native.Provider]
    scope: str
    settings: SandboxSettings
    _closed: str | None = None
    _made: tuple[int, _native.Threads] | None = field(default=None, repr=False)

    def native(self) -> _native.Threads:
        """Return the registry of this process; a forked child has its own."""
        if self._made is None or self._made[0] != os.getpid():
            settings = self.settings
            made = self.provider().threads(
                self.scope, settings.labels, settings.ttl_seconds, settings.ttl_idle_seconds, recreate=settings.recreate
            )
            if self._closed is not None:
                made.close(self._closed)
            self._made = os.getpid(), traced(made)
        return self._made[1]

    def id_of(self, thread: str) -> str:
        """Return the id of a thread's sandbox, which may not exist yet."""
        return self.native().id_of(thread)

    def get(self, thread: str) -> _native.Sandbox:
        """Return a thread's sandbox; create it if necessary."""
        return self.native().known(thread) or self.native().get_or_create(thread).wait()

    async def aget(self, thread: str) -> _native.Sandbox:
        """Return a thread's sandbox, as `get` does."""
        return self.native().known(thread) or await self.native().get_or_create(thread)

    def close(self, why: str) -> list[str]:
        """Reject further calls; return the ids of the used sandboxes."""
        self._closed = why
        return self.native().close(why)

    def shut_down(self, why: str, within: float, *, whole_scope: bool) -> _native.Call[None]:
        """Close, delete the sandboxes that this process used or those of the scope, and close the provider."""
        self._closed = why
        return self.native().shut_down(why, within, whole_scope=whole_scope)
