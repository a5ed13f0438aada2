"""The details and statistics of sandboxes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from sandpod import _native

Status = Literal["running", "warm", "suspended", "pending", "terminated"]
"""The status of a sandbox. `terminated`: it has expired or lost its Pod. `suspended`: it can be resumed."""

GuestDelivery = Literal["image", "config-map", "template", "push", "sandboxd", "legacy"]
"""How the guest was delivered into the Pod. With the last two, a stock runtime replaces the guest."""


@dataclass
class SandboxInfo:
    """The details of a sandbox, without connecting to it. Times are ISO 8601 in UTC."""

    id: str
    namespace: str
    thread_id: str | None = None
    labels: dict[str, str] = field(default_factory=dict[str, str])
    annotations: dict[str, str] = field(default_factory=dict[str, str])
    created_at: str | None = None
    last_activity: str | None = None
    status: Status | None = None
    guest_delivery: GuestDelivery | None = None
    """How the guest was delivered; None for a sandbox without a Pod."""
    guest_delivery_reason: str | None = None
    """Why better deliveries were not available."""
    connection: str | None = None
    """The last `connection_mode` to the guest; None outside agent-sandbox mode."""
    connection_reason: str | None = None
    """Why better connection modes were not available."""
    durable_dirs: list[str] = field(default_factory=list[str])
    """Directories on volumes, which survive a suspend. Agent-sandbox mode only."""


@dataclass
class SandboxListResponse:
    """One page of sandboxes, and the cursor of the next page."""

    sandboxes: list[SandboxInfo]
    cursor: str | None = None


@dataclass
class CleanupResult:
    """The ids of deleted sandboxes, and the number of kept ones."""

    deleted: list[str] = field(default_factory=list[str])
    kept: int = 0


@dataclass
class WarmPoolStatus:
    """The status of a warm pool."""

    available: int
    active: int
    total: int
    target: int


@dataclass
class ProviderStats:
    """Numbers of sandboxes; `idle` ones are running without recent calls."""

    total: int
    running: int
    warm: int
    idle: int
    thread_ids: list[str]


def page_of(page: _native.Page) -> SandboxListResponse:
    """Convert the native type."""
    return SandboxListResponse([_info_of(info) for info in page["sandboxes"]], page["cursor"])


def _info_of(info: _native.Info) -> SandboxInfo:
    return SandboxInfo(
        id=info["id"],
        namespace=info["namespace"],
        thread_id=info["thread_id"],
        labels=info["labels"],
        annotations=info["annotations"],
        created_at=_written(info["created_at"]),
        last_activity=_written(info["last_activity"]),
        status=info["status"],
        guest_delivery=info["guest_delivery"],
        guest_delivery_reason=info["guest_delivery_reason"],
        connection=info["connection"],
        connection_reason=info["connection_reason"],
        durable_dirs=info["durable_dirs"],
    )


def _written(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()
