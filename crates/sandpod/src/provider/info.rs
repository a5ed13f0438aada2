//! What a provider says of its sandboxes.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::life::Status;
use crate::SandboxId;
use crate::backend::agent_sandbox::{CONNECTION, CONNECTION_REASON, durable_dirs};
use crate::backend::raw::COLD_REASON;
use crate::backend::{GuestDelivery, PlaceState, Record};

/// The label by which a sandbox belongs to a conversation.
const THREAD_ID: &str = "thread-id";

/// What is known of a sandbox without asking its guest.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SandboxInfo {
    /// By this it is found again.
    pub id: SandboxId,
    /// Where it is.
    pub namespace: String,
    /// The conversation that it belongs to, by its label `thread-id`.
    pub thread_id: Option<String>,
    /// As they were given.
    pub labels: BTreeMap<String, String>,
    /// All that its anchor has.
    pub annotations: BTreeMap<String, String>,
    /// When it was handed out; none while it is made.
    pub created_at: Option<SystemTime>,
    /// When it was used last, as far as that is recorded: at most once a minute, or more often where a short idle time to
    /// live depends on it.
    pub last_activity: Option<SystemTime>,
    /// When it ends if nobody uses it before; none: it doesn't.
    pub expires_at: Option<SystemTime>,
    /// What state it is in.
    pub status: Status,
    /// Counts the places that it had.
    pub generation: u32,
    /// How the guest came into its Pod; none for a sandbox that has no Pod.
    pub guest_delivery: Option<GuestDelivery>,
    /// Why the guest came by no better way.
    pub guest_delivery_reason: Option<String>,
    /// Why it was not taken from the pool of its provider; none: it was, or there is no pool.
    pub cold_reason: Option<String>,
    /// The way by which its guest was reached last, as `connection_mode` names it; none outside of agent-sandbox mode.
    pub connection: Option<String>,
    /// Why that was no better way.
    pub connection_reason: Option<String>,
    /// The directories on volumes that outlive its Pod: what survives when it is suspended. All else is lost with the Pod.
    /// Known in agent-sandbox mode only.
    pub durable_dirs: Vec<String>,
}

impl SandboxInfo {
    pub(crate) fn new(record: Record, now: SystemTime) -> Self {
        let (guest_delivery, guest_delivery_reason) = record.guest.clone().unzip();
        Self {
            guest_delivery,
            guest_delivery_reason: guest_delivery_reason.flatten(),
            status: record.status(now),
            expires_at: record.expires_at(None),
            thread_id: record.labels.get(THREAD_ID).cloned(),
            cold_reason: record.annotations.get(COLD_REASON).cloned(),
            connection: record.annotations.get(CONNECTION).cloned(),
            connection_reason: record.annotations.get(CONNECTION_REASON).cloned(),
            durable_dirs: durable_dirs(&record.annotations),
            id: record.id,
            namespace: record.namespace,
            labels: record.labels,
            annotations: record.annotations,
            created_at: record.created_at,
            last_activity: record.last_activity,
            generation: record.generation,
        }
    }
}

/// Which sandboxes to list.
///
/// ```
/// use sandpod::{ListOptions, Status};
///
/// let options = ListOptions { status: Some(Status::Running), ..ListOptions::default() };
/// assert!(options.cursor.is_none());
/// ```
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    /// Those that have all of these.
    pub labels: BTreeMap<String, String>,
    /// Those in this state.
    pub status: Option<Status>,
    /// Where the last page ended.
    pub cursor: Option<String>,
}

/// One page of sandboxes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SandboxPage {
    /// Some of them.
    pub sandboxes: Vec<SandboxInfo>,
    /// Where the next page begins; none: this was the last one.
    pub cursor: Option<String>,
}

/// What a cleanup did.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct CleanupResult {
    /// What this cleanup deleted, and nobody else.
    pub deleted: Vec<SandboxId>,
    /// How many stayed.
    pub kept: usize,
}

/// How many sandboxes there are.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// In every state.
    pub total: usize,
    /// Those that can be used.
    pub running: usize,
    /// Those that wait in a pool.
    pub warm: usize,
    /// Those that can be used, but were not for a while.
    pub idle: usize,
    /// The conversations that have one.
    pub thread_ids: Vec<String>,
}

impl Stats {
    pub(crate) fn count(&mut self, records: Vec<Record>, idle_threshold: Duration, now: SystemTime) {
        for record in records {
            self.total += 1;
            self.warm += usize::from(record.place_state == PlaceState::Warm);
            if record.status(now) == Status::Running {
                self.running += 1;
                self.idle += usize::from(record.is_idle(idle_threshold, now));
            }
            self.thread_ids.extend(record.labels.get(THREAD_ID).cloned());
        }
    }
}

/// How a warm pool is filled.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct PoolStatus {
    /// Those that wait for somebody.
    pub available: usize,
    /// Those that somebody has.
    pub active: usize,
    /// Both.
    pub total: usize,
    /// As many as are to wait.
    pub target: usize,
}
