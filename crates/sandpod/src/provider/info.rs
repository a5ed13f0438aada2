//! Properties, lists and counts of sandboxes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use super::life::Status;
use crate::SandboxId;
use crate::backend::agent_sandbox::{CONNECTION, CONNECTION_REASON, durable_dirs};
use crate::backend::raw::COLD_REASON;
use crate::backend::{GuestDelivery, POLICY_SHA256, PlaceState, Record};

/// The label with the conversation thread of a sandbox.
const THREAD_ID: &str = "thread-id";

/// The properties of a sandbox that need no call to its guest.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SandboxInfo {
    /// The id by which it is found again.
    pub id: SandboxId,
    /// Its namespace.
    pub namespace: String,
    /// Its conversation thread, from the label `thread-id`.
    pub thread_id: Option<String>,
    /// Its labels, without the prefix.
    pub labels: BTreeMap<String, String>,
    /// All annotations of its anchor.
    pub annotations: BTreeMap<String, String>,
    /// The time at which it was handed out; none while it is created.
    pub created_at: Option<SystemTime>,
    /// The time of the last recorded use. The record is written at most once a minute, or more often for a short idle
    /// time to live.
    pub last_activity: Option<SystemTime>,
    /// The time at which it expires without another use; none: never.
    pub expires_at: Option<SystemTime>,
    /// Its state.
    pub status: Status,
    /// Whether it is [`Status::Terminated`] although its time is not up: its Pod or its guest is lost. In local mode, the
    /// next use of its id starts its guest again.
    pub is_lost: bool,
    /// The number of places that it has had.
    pub generation: u32,
    /// The delivery of the guest into its Pod. None for a sandbox without a Pod.
    pub guest_delivery: Option<GuestDelivery>,
    /// Why no better delivery was possible.
    pub guest_delivery_reason: Option<String>,
    /// Why it was not taken from the pool of its provider. None if it was, or if there is no pool.
    pub cold_reason: Option<String>,
    /// The connection mode that was used last, as `connection_mode` names it. None outside of agent-sandbox mode.
    pub connection: Option<String>,
    /// Why no better connection mode was possible.
    pub connection_reason: Option<String>,
    /// Its network: `none`, `open`, or `host` for that of this machine. None if a template decides, or without a place.
    pub network: Option<String>,
    /// The limits of its resources, such as `memory`.
    pub limits: BTreeMap<String, String>,
    /// SHA-256 of the policy that it is bound to, in hexadecimal. None without a policy.
    pub policy_sha256: Option<String>,
    /// The directory of its state on this machine. None in a cluster.
    pub state_dir: Option<PathBuf>,
    /// The directories on volumes that outlive its Pod: what survives when it is suspended. All else is lost with the
    /// Pod. Known in agent-sandbox mode only.
    pub durable_dirs: Vec<String>,
}

impl SandboxInfo {
    pub(crate) fn new(record: Record, now: SystemTime) -> Self {
        let (guest_delivery, guest_delivery_reason) = record.guest.clone().unzip();
        Self {
            guest_delivery,
            guest_delivery_reason: guest_delivery_reason.flatten(),
            status: record.status(now),
            is_lost: record.is_lost(now),
            expires_at: record.expires_at(None),
            thread_id: record.labels.get(THREAD_ID).cloned(),
            cold_reason: record.annotations.get(COLD_REASON).cloned(),
            connection: record.annotations.get(CONNECTION).cloned(),
            connection_reason: record.annotations.get(CONNECTION_REASON).cloned(),
            durable_dirs: durable_dirs(&record.annotations),
            network: record.facts.network.map(str::to_owned),
            limits: record.facts.limits,
            policy_sha256: record.annotations.get(POLICY_SHA256).filter(|hash| is_policy(hash)).cloned(),
            state_dir: record.facts.state_dir,
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

/// Whether a guest with this hash is bound to a policy. Guests hash a zero if there is none.
fn is_policy(hash: &str) -> bool {
    !hash.is_empty() && *hash != HEXLOWER.encode(&Sha256::digest([0]))
}

/// Selects the sandboxes of a list.
///
/// ```
/// use sandpod::{ListOptions, Status};
///
/// let options = ListOptions { status: Some(Status::Running), ..ListOptions::default() };
/// assert!(options.cursor.is_none());
/// ```
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    /// Labels that a sandbox must have.
    pub labels: BTreeMap<String, String>,
    /// The state that a sandbox must have.
    pub status: Option<Status>,
    /// The cursor of the last page.
    pub cursor: Option<String>,
}

/// One page of sandboxes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SandboxPage {
    /// The sandboxes of this page.
    pub sandboxes: Vec<SandboxInfo>,
    /// The cursor of the next page; none: this is the last one.
    pub cursor: Option<String>,
}

/// The result of a cleanup.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct CleanupResult {
    /// The sandboxes that this cleanup deleted, without those that other processes deleted.
    pub deleted: Vec<SandboxId>,
    /// The number of sandboxes that stay.
    pub kept: usize,
}

/// Counts of sandboxes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Sandboxes in any state.
    pub total: usize,
    /// Sandboxes that can be used.
    pub running: usize,
    /// Pods that wait in warm pools.
    pub warm: usize,
    /// Sandboxes that can be used and are idle.
    pub idle: usize,
    /// The conversation threads that have a sandbox.
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

/// The state of a warm pool.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct PoolStatus {
    /// Pods that are ready and not taken.
    pub available: usize,
    /// Pods that sandboxes have taken.
    pub active: usize,
    /// All Pods.
    pub total: usize,
    /// The number of Pods to keep ready.
    pub target: usize,
}
