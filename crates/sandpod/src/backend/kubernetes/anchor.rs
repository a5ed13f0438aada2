//! The labels and annotations that an anchor has in both modes, what they record ([`Recorded`]), and reading one page
//! of anchors.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sandpod_kube::k8s_openapi::jiff::Timestamp;
use sandpod_kube::kube::api::ListParams;
use sandpod_kube::kube::{Api, ResourceExt};

use super::api::{self, is, within};
use crate::backend::{CreateSpec, Facts, GuestDelivery, Place, PlaceState, PolicyHash, Query, Record};
use crate::config::OWN_DOMAIN;
use crate::labels::label_value;
use crate::{Error, ErrorKind, Naming, Result, SandboxId, naming};

pub(in crate::backend) const MANAGED_BY: (&str, &str) = (naming::MANAGED_BY, "sandpod");
pub(in crate::backend) const ID_LABEL: &str = "sandpod.dev/id";
/// Selects the objects of all sandboxes.
pub(in crate::backend) const OURS: &str = "app.kubernetes.io/managed-by=sandpod,sandpod.dev/id";
/// On a sandbox's own namespace: the namespace of the configuration, by which they are listed.
pub(in crate::backend) const PARENT_LABEL: &str = "sandpod.dev/parent";
/// Suffix of the annotation that holds a label's original value where that is no valid label value.
const ORIGINAL: &str = "-original";
pub(in crate::backend) const GENERATION: &str = "sandpod.dev/generation";
pub(in crate::backend) const POD_UID: &str = "sandpod.dev/pod-uid";
pub(in crate::backend) const CREATED_AT: &str = "sandpod.dev/created-at";
/// SHA-256 of the policy that the guest of this generation is bound to.
pub(crate) const POLICY_SHA256: &str = "sandpod.dev/policy-sha256";
pub(in crate::backend) const SETUP_UNTIL: &str = "sandpod.dev/setup-until";
/// The generation whose files were lost, until a caller is told.
pub(in crate::backend) const UNREPORTED_LOSS: &str = "sandpod.dev/unreported-loss";
pub(in crate::backend) const TTL: &str = "sandpod.dev/ttl-seconds";
pub(in crate::backend) const IDLE_TTL: &str = "sandpod.dev/ttl-idle-seconds";
/// On a claim. A Lease has a field for it, and this annotation only with a naming that has a name for it.
pub(in crate::backend) const LAST_ACTIVITY: &str = "sandpod.dev/last-activity";

/// The properties of a sandbox that its anchor records in both modes, as they were read.
#[derive(Clone, Debug)]
pub(in crate::backend) struct Recorded {
    pub(in crate::backend) id: SandboxId,
    pub(in crate::backend) uid: String,
    /// The number of places that the sandbox has had.
    pub(in crate::backend) generation: u32,
    /// The Pod of this generation, once it was seen.
    pub(in crate::backend) pod_uid: Option<String>,
    /// When this generation's guest was bound.
    pub(in crate::backend) created_at: Option<SystemTime>,
    /// SHA-256 of the policy that the guest is bound to.
    pub(in crate::backend) policy_sha256: Option<PolicyHash>,
    /// The deadline of the set-up of this generation, once a caller has begun it.
    pub(in crate::backend) setup_until: Option<Timestamp>,
    pub(in crate::backend) ttl: Option<Duration>,
    pub(in crate::backend) idle_ttl: Option<Duration>,
    pub(in crate::backend) labels: BTreeMap<String, String>,
    pub(in crate::backend) annotations: BTreeMap<String, String>,
    pub(in crate::backend) made_at: Option<SystemTime>,
    pub(in crate::backend) last_activity: Option<SystemTime>,
    pub(in crate::backend) resource_version: String,
}

impl Recorded {
    /// Parses the metadata of an anchor. Returns none if it is not an anchor.
    pub(in crate::backend) fn parse(metadata: ObjectMeta) -> Result<Option<Self>> {
        let id: SandboxId = metadata.name.unwrap_or_default().parse()?;
        let (labels, annotations) =
            (metadata.labels.unwrap_or_default(), metadata.annotations.unwrap_or_default());
        let annotation = |name: &str| annotations.get(name).filter(|value| !value.is_empty());
        let seconds = |name: &str| annotation(name)?.parse().ok().map(Duration::from_secs);
        let moment = |name: &str| annotation(name)?.parse::<Timestamp>().ok();
        let generation = annotation(GENERATION).and_then(|text| text.parse().ok());
        let (Some(generation), Some(uid), Some(resource_version)) =
            (generation, metadata.uid, metadata.resource_version)
        else {
            return Ok(None);
        };
        Ok(Some(Self {
            generation,
            uid,
            pod_uid: annotation(POD_UID).cloned(),
            created_at: moment(CREATED_AT).map(time),
            policy_sha256: annotation(POLICY_SHA256).and_then(|text| PolicyHash::from_hex(text)),
            setup_until: moment(SETUP_UNTIL),
            ttl: seconds(TTL),
            idle_ttl: seconds(IDLE_TTL),
            made_at: metadata.creation_timestamp.map(|created| time(created.0)),
            last_activity: moment(LAST_ACTIVITY).map(time),
            resource_version,
            id,
            labels,
            annotations,
        }))
    }

    /// Whether `place` is the current generation.
    pub(in crate::backend) fn is_at(&self, place: &Place) -> bool {
        self.uid == place.uid && self.generation == place.generation
    }

    /// Whether files of an earlier generation were lost, and no caller has been told.
    pub(in crate::backend) fn has_unreported_loss(&self) -> bool {
        self.annotations.contains_key(UNREPORTED_LOSS)
    }

    /// Whether the set-up of this generation was begun and not finished in time.
    pub(in crate::backend) fn is_half_set_up(&self) -> bool {
        self.created_at.is_none() && self.setup_until.is_some_and(|until| until < Timestamp::now())
    }

    /// Returns the recorded time of the last use.
    pub(in crate::backend) fn used_at(&self) -> SystemTime {
        self.last_activity.max(self.created_at).unwrap_or_else(SystemTime::now)
    }

    /// Returns the record of the sandbox, whose users' labels have this prefix and whose Pod is `pod`.
    pub(in crate::backend) fn record(
        &self,
        namespace: &str,
        label_prefix: &str,
        pod: Option<&Pod>,
        place_state: PlaceState,
        guest: Option<(GuestDelivery, Option<String>)>,
    ) -> Record {
        let pod_made_at = pod.and_then(ResourceExt::creation_timestamp).map(|created| time(created.0));
        Record {
            id: self.id.clone(),
            uid: self.uid.clone(),
            namespace: namespace.to_owned(),
            labels: users_labels(label_prefix, &self.labels, &self.annotations),
            annotations: self.annotations.clone(),
            generation: self.generation,
            made_at: self.made_at.max(pod_made_at),
            created_at: self.created_at,
            last_activity: self.last_activity,
            ttl: self.ttl,
            idle_ttl: self.idle_ttl,
            place_state,
            guest,
            facts: Facts::default(),
            version: self.resource_version.clone(),
        }
    }
}

/// Returns one page of the objects that `ours` selects and that carry the labels of the query, and the cursor of the
/// next page.
pub(in crate::backend) async fn page<K: api::Object>(
    objects: &Api<K>,
    prefix: &str,
    query: &Query,
    ours: &str,
) -> Result<(Vec<K>, Option<String>)> {
    let users = query.labels.iter().map(|(key, value)| format!(",{prefix}{key}={}", label_value(value)));
    let users = users.collect::<String>();
    let selector = format!("{ours}{users}");
    let mut wanted = ListParams::default().labels(&selector).limit(query.limit);
    wanted.continue_token.clone_from(&query.cursor);
    let found = within(objects.list(&wanted)).await.map_err(|cause| match query.cursor {
        Some(_) if is(&cause, 410) || is(&cause, 400) => {
            Error::invalid("The cursor has expired or is not a cursor.", "List again from the beginning.")
        }
        _ => Error::api(&format!("list {}", K::plural(&())), &cause),
    })?;
    let cursor = found.metadata.continue_.filter(|cursor| !cursor.is_empty());
    Ok((found.items, cursor))
}

/// Returns the labels of an object that belongs to a sandbox and has none of its user's labels.
pub(in crate::backend) fn own_labels(naming: Naming, id: &SandboxId) -> BTreeMap<String, String> {
    let mut labels = naming.labels(id);
    labels.insert(ID_LABEL.to_owned(), id.to_string());
    labels
}

/// Returns the labels of a sandbox's anchor: ours and its user's.
pub(in crate::backend) fn labels(
    prefix: &str,
    id: &SandboxId,
    wanted: &CreateSpec,
) -> BTreeMap<String, String> {
    let own = [(MANAGED_BY.0, MANAGED_BY.1), (ID_LABEL, id.as_str())];
    let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let users = wanted.labels.iter().map(|(key, value)| (format!("{prefix}{key}"), label_value(value)));
    users.chain(own).collect()
}

/// Returns the annotations that record the properties of a new sandbox.
pub(in crate::backend) fn spec_annotations(
    prefix: &str,
    wanted: &CreateSpec,
) -> impl Iterator<Item = (String, String)> {
    let originals = wanted.labels.iter().filter(|(_, value)| label_value(value) != **value);
    let originals = originals.map(move |(key, value)| (format!("{prefix}{key}{ORIGINAL}"), value.clone()));
    let times = [(TTL, wanted.ttl), (IDLE_TTL, wanted.idle_ttl)];
    let times = times.into_iter().filter_map(|(key, time)| Some((key.to_owned(), seconds(time?))));
    originals.chain(times)
}

/// Returns the labels as their user gave them.
pub(in crate::backend) fn users_labels(
    prefix: &str,
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let users = labels.iter().filter(|(key, _)| is_users(prefix, key));
    let users = users.filter_map(|(key, value)| Some((key.strip_prefix(prefix)?, key, value)));
    users
        .map(|(name, key, value)| {
            let original = annotations.get(&format!("{key}{ORIGINAL}"));
            (name.to_owned(), original.unwrap_or(value).clone())
        })
        .collect()
}

/// Whether a label is a user's. Without a prefix, every label is that is neither ours nor agent-sandbox's.
fn is_users(prefix: &str, key: &str) -> bool {
    let ours = [MANAGED_BY.0, ID_LABEL, PARENT_LABEL].contains(&key);
    let anybodys = !prefix.is_empty() || ![OWN_DOMAIN, "x-k8s.io/"].iter().any(|domain| key.contains(domain));
    !ours && anybodys
}

/// Rounds up: 0 would be no time at all.
fn seconds(time: Duration) -> String {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0)).to_string()
}

pub(in crate::backend) fn time(timestamp: Timestamp) -> SystemTime {
    timestamp.into()
}

/// Formats a time as Kubernetes writes those of a Lease.
pub(in crate::backend) fn micros(time: Timestamp) -> String {
    format!("{time:.6}")
}

/// The error for an anchor that was deleted during the call.
pub(in crate::backend) fn vanished(id: &SandboxId) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!("Sandbox '{id}' was deleted during this call."),
        "Create it again, if it is still needed.",
    )
}
