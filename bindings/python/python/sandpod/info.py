"""What a provider says of its sandboxes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from sandpod import _native

Status = Literal["running", "warm", "suspended", "pending", "terminated"]
"""What state a sandbox is in; a terminated one's time is up, or its place is lost; a suspended one can be resumed."""

GuestDelivery = Literal["image", "config-map", "template", "push", "sandboxd", "legacy"]
"""How a guest comes into a Pod, the best way first; with the last two a stock runtime stands for one."""


@dataclass
class SandboxInfo:
    """What is known of a sandbox without asking it. Times are ISO 8601 in UTC."""

    id: str
    namespace: str
    thread_id: str | None = None
    labels: dict[str, str] = field(default_factory=dict[str, str])
    annotations: dict[str, str] = field(default_factory=dict[str, str])
    created_at: str | None = None
    last_activity: str | None = None
    status: Status | None = None
    guest_delivery: GuestDelivery | None = None
    """How the guest came into its Pod; None for a sandbox that has no Pod."""
    guest_delivery_reason: str | None = None
    """Why the guest came by no better way."""
    connection: str | None = None
    """The way by which its guest was reached last, as `connection_mode` names it; None outside agent-sandbox mode."""
    connection_reason: str | None = None
    """Why that was no better way."""
    durable_dirs: list[str] = field(default_factory=list[str])
    """The directories that survive a suspend, on volumes; known in agent-sandbox mode only."""


@dataclass
class SandboxListResponse:
    """One page of sandboxes, and where the next one begins."""

    sandboxes: list[SandboxInfo]
    cursor: str | None = None


@dataclass
class CleanupResult:
    """The ids that a cleanup deleted, and how many sandboxes it kept."""

    deleted: list[str] = field(default_factory=list[str])
    kept: int = 0


@dataclass
class WarmPoolStatus:
    """How a warm pool is filled."""

    available: int
    active: int
    total: int
    target: int


@dataclass
class ProviderStats:
    """How many sandboxes there are; `idle` ones run, but were not used for a while."""

    total: int
    running: int
    warm: int
    idle: int
    thread_ids: list[str]


def page_of(page: _native.Page) -> SandboxListResponse:
    """Make one page of what the native half says."""
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
