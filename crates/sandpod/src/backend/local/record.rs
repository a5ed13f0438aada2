//! The record of a local sandbox.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::cgroups::Cgroups;
use super::guest::StartOptions;
use super::limits::{LIMIT_PREFIX, Limits};
use super::{LocalMount, LocalNetwork};
use crate::SandboxId;
use crate::backend::{CreateSpec, Facts, POLICY_SHA256, PlaceState, Record};

/// The contents of `record.json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Stored {
    /// Identifies the sandbox: the guest is bound to it. The alias is the name that builds before 0.1.0 wrote.
    #[serde(alias = "claim")]
    pub(super) uid: String,
    pub(super) generation: u32,
    /// The number of changes.
    revision: u64,
    labels: BTreeMap<String, String>,
    ttl_seconds: Option<u64>,
    ttl_idle_seconds: Option<u64>,
    pub(super) network: LocalNetwork,
    pub(super) limits: Limits,
    /// The limits that are enforced, for people.
    annotations: BTreeMap<String, String>,
    made_at: SystemTime,
    /// The time at which the creator received the sandbox.
    pub(super) created_at: Option<SystemTime>,
    last_activity: Option<SystemTime>,
    /// Files and directories of the machine that are mounted.
    #[serde(default)]
    pub(super) mounts: Vec<LocalMount>,
    /// SHA-256 of the policy that the guest is bound to.
    #[serde(default)]
    pub(super) policy_sha256: Option<String>,
    /// The process whose exit ends the sandbox.
    owner: Option<u32>,
    /// A caller other than its creator has attached to it.
    #[serde(default)]
    pub(super) shared: bool,
    /// Files of an earlier generation were lost, and the loss is not reported yet.
    #[serde(default)]
    pub(super) unreported_loss: bool,
}

impl Stored {
    pub(super) fn new(wanted: &CreateSpec, options: &StartOptions) -> Self {
        Self {
            uid: format!("local-{:016x}", fastrand::u64(..)),
            generation: 1,
            revision: 1,
            labels: BTreeMap::new(),
            ttl_seconds: None,
            ttl_idle_seconds: None,
            network: options.network,
            limits: options.limits,
            annotations: options.limits.held(&Cgroups::default()),
            made_at: SystemTime::now(),
            created_at: None,
            last_activity: None,
            mounts: options.mounts.clone(),
            policy_sha256: None,
            owner: None,
            shared: false,
            unreported_loss: false,
        }
        .wanted(wanted)
        .kept_by(options)
    }

    /// Sets whether the guest that is started now ends with this process.
    pub(super) fn kept_by(self, options: &StartOptions) -> Self {
        Self { owner: options.owned.then(std::process::id), ..self }
    }

    /// Sets network, limits and mounts as for a new sandbox.
    pub(super) fn in_manner(self, options: &StartOptions) -> Self {
        let annotations = options.limits.held(&Cgroups::default());
        let (network, limits, mounts) = (options.network, options.limits, options.mounts.clone());
        Self { network, limits, annotations, mounts, ..self.kept_by(options) }
    }

    pub(super) fn ttl(&self) -> Option<Duration> {
        self.ttl_seconds.map(Duration::from_secs)
    }

    pub(super) fn idle_ttl(&self) -> Option<Duration> {
        self.ttl_idle_seconds.map(Duration::from_secs)
    }

    pub(super) fn version(&self) -> String {
        self.revision.to_string()
    }

    /// Counts a change.
    pub(super) fn revised(self) -> Self {
        Self { revision: self.revision + 1, ..self }
    }

    /// Starts the lifetime, unless it has started, and records the policy that the guest is bound to.
    pub(super) fn handed_out(self, policy_sha256: Option<String>) -> Self {
        Self { created_at: self.created_at.or_else(|| Some(SystemTime::now())), policy_sha256, ..self }
    }

    /// Returns the recorded time of the last use.
    pub(super) fn used_at(&self) -> SystemTime {
        self.last_activity.max(self.created_at).unwrap_or(self.made_at)
    }

    pub(super) fn used(self) -> Self {
        Self { last_activity: Some(SystemTime::now()), ..self }
    }

    pub(super) fn with_ttl(self, ttl: Duration) -> Self {
        Self { ttl_seconds: Some(ttl.as_secs()), ..self }
    }

    /// Records which limits are enforced.
    pub(super) fn held(self, held: BTreeMap<String, String>) -> Self {
        Self { annotations: held, ..self }
    }

    /// Records that another caller has attached to it.
    pub(super) fn shared(self) -> Self {
        Self { shared: true, ..self }
    }

    /// Marks it as deleted.
    pub(super) fn marked_deleted(self) -> Self {
        Self { uid: String::new(), ..self }
    }

    /// Reports whether the sandbox is being deleted, or its deletion was interrupted.
    pub(super) fn is_marked_deleted(&self) -> bool {
        self.uid.is_empty()
    }

    /// Sets the properties of a new sandbox.
    pub(super) fn wanted(self, wanted: &CreateSpec) -> Self {
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs());
        let (ttl_seconds, ttl_idle_seconds) = (seconds(wanted.ttl), seconds(wanted.idle_ttl));
        Self { labels: wanted.labels.clone(), ttl_seconds, ttl_idle_seconds, ..self }
    }

    /// Reports whether the process whose exit ends the sandbox has exited.
    pub(super) fn is_orphaned(&self) -> bool {
        self.owner.is_some_and(|owner| !Path::new(&format!("/proc/{owner}")).exists())
    }

    /// Starts the next generation.
    pub(super) fn new_generation(self) -> Self {
        let now = SystemTime::now();
        Self {
            generation: self.generation + 1,
            made_at: now,
            created_at: None,
            last_activity: None,
            shared: false,
            // A generation that no caller was given had no files of users.
            unreported_loss: self.unreported_loss || self.created_at.is_some(),
            ..self
        }
    }

    /// Records that the loss was reported.
    pub(super) fn reported(self) -> Self {
        Self { unreported_loss: false, ..self }
    }

    pub(super) fn record(
        self,
        id: SandboxId,
        namespace: &str,
        place_state: PlaceState,
        dir: &Path,
    ) -> Record {
        let (version, ttl, idle_ttl) = (self.version(), self.ttl(), self.idle_ttl());
        let mut annotations = self.annotations;
        annotations.extend(self.policy_sha256.map(|hash| (POLICY_SHA256.to_owned(), hash)));
        let limits = annotations
            .iter()
            .filter_map(|(key, limit)| Some((key.strip_prefix(LIMIT_PREFIX)?.to_owned(), limit.clone())));
        let facts = Facts {
            network: Some(match self.network {
                LocalNetwork::None => "none",
                LocalNetwork::Host => "host",
            }),
            limits: limits.collect(),
            state_dir: Some(dir.to_owned()),
        };
        Record {
            id,
            version,
            ttl,
            idle_ttl,
            uid: self.uid,
            namespace: namespace.to_owned(),
            labels: self.labels,
            annotations,
            generation: self.generation,
            made_at: Some(self.made_at),
            created_at: self.created_at,
            last_activity: self.last_activity,
            place_state,
            guest: None,
            facts,
        }
    }
}

/// The substitute for an unreadable record.
pub(super) fn unreadable(id: SandboxId, namespace: &str) -> Record {
    Record {
        id,
        version: String::new(),
        ttl: None,
        idle_ttl: None,
        uid: String::new(),
        namespace: namespace.to_owned(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        generation: 0,
        made_at: None,
        created_at: None,
        last_activity: None,
        place_state: PlaceState::Lost,
        guest: None,
        facts: Facts::default(),
    }
}
