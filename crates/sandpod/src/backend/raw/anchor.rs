//! The Lease of a sandbox. Its creation is the only lock, and it owns all other objects of the sandbox.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::time::Duration;

use sandpod_kube::k8s_openapi::api::coordination::v1::Lease;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use sandpod_kube::k8s_openapi::jiff::Timestamp;
use sandpod_kube::kube::api::PostParams;
use sandpod_kube::kube::{Api, Client, ResourceExt};
use sandpod_kube::watch::SharedWatch;
use serde_json::{Value, json};

use super::network::NETWORK_LABEL;
use crate::backend::kubernetes::anchor::{
    CREATED_AT, GENERATION, LAST_ACTIVITY, MANAGED_BY, OURS, POD_UID, POLICY_SHA256, Recorded, SETUP_UNTIL,
    TTL, UNREPORTED_LOSS, labels, micros, own_labels, page, spec_annotations, time, vanished,
};
use crate::backend::kubernetes::anchor_store::AnchorStore;
use crate::backend::kubernetes::api::{self, find, is, within};
use crate::backend::kubernetes::{limits, loss, object};
use crate::backend::{CreateSpec, Facts, GuestDelivery, Place, PlaceState, PolicyHash, Query, Record};
use crate::{Error, ErrorKind, Naming, RawConfig, Result, SandboxId};

pub(super) const SPEC_HASH: &str = "sandpod.dev/spec-hash";
/// The naming of its Pods, if it is not sandpod's own.
const NAMING: &str = "sandpod.dev/naming";
const POD_NAME: &str = "sandpod.dev/pod-name";
/// Why a sandbox did not get a Pod of the pool.
pub(crate) const COLD_REASON: &str = "sandpod.dev/cold-reason";

/// The Leases of one namespace.
#[derive(Clone)]
pub(super) struct Anchors {
    leases: Api<Lease>,
    watch: SharedWatch<Lease>,
    /// The prefix of users' labels.
    prefix: String,
    naming: Naming,
}

/// A sandbox's Lease, as it was read.
#[derive(Clone, Debug)]
pub(super) struct Anchor {
    pub(super) recorded: Recorded,
    naming: Naming,
    /// The Pod of this generation, if it comes from a pool.
    warm_pod: Option<String>,
    holder: Option<String>,
}

impl Deref for Anchor {
    type Target = Recorded;

    fn deref(&self) -> &Recorded {
        &self.recorded
    }
}

/// Where the Pod of a generation comes from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Source {
    /// The Pod of this name in a pool.
    Pool(String),
    /// A new Pod. If there is a pool, this is why none was taken from it.
    New(Option<String>),
}

impl Source {
    /// Returns the annotations that record it.
    fn annotations(&self) -> [(&'static str, Option<&str>); 2] {
        match self {
            Self::Pool(pod) => [(POD_NAME, Some(pod)), (COLD_REASON, None)],
            Self::New(why) => [(POD_NAME, None), (COLD_REASON, why.as_deref())],
        }
    }
}

impl Anchor {
    /// Returns the name of this generation's Pod. A caller that finds none may create it or, in a pool, take it for
    /// this anchor: one of several succeeds.
    pub(super) fn pod_name(&self) -> String {
        self.warm_pod.clone().unwrap_or_else(|| self.naming.pod(&self.id, self.generation))
    }

    /// Returns the labels of its Pods.
    pub(super) fn pod_labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.labels.clone();
        labels.extend(self.naming.labels(&self.id));
        labels
    }

    /// Returns the labels of its other objects.
    pub(super) fn own_labels(&self) -> BTreeMap<String, String> {
        own_labels(self.naming, &self.id)
    }

    /// Returns the name and label of the policy for its Pods alone, if its naming has one.
    pub(super) fn own_policy(&self) -> Option<(String, &'static str)> {
        self.naming.own_policy(&self.id)
    }

    /// Whether its Pod comes from a pool.
    pub(super) fn is_warm(&self) -> bool {
        self.warm_pod.is_some()
    }

    /// Whether the call of this holder created it. A call without a response recognises its own anchor by that.
    pub(super) fn is_held_by(&self, holder: &str) -> bool {
        self.holder.as_deref() == Some(holder)
    }

    fn read(lease: Lease) -> Result<Self> {
        let id: SandboxId = lease.name_any().parse()?;
        let foreign = || {
            Error::new(
                ErrorKind::AlreadyExists,
                format!("The Lease '{id}' exists, but it is not a sandbox."),
                "Use another sandbox id.",
            )
        };
        if lease.labels().get(MANAGED_BY.0).map(String::as_str) != Some(MANAGED_BY.1) {
            return Err(foreign());
        }
        let spec = lease.spec.unwrap_or_default();
        let mut recorded = Recorded::parse(lease.metadata)?.ok_or_else(foreign)?;
        recorded.last_activity = spec.renew_time.map(|renewed| time(renewed.0));
        let annotation =
            |name: &str| recorded.annotations.get(name).map(String::as_str).filter(|value| !value.is_empty());
        let naming = Naming::of_note(annotation(NAMING));
        let own_pod = naming.pod(&id, recorded.generation);
        let warm_pod = annotation(POD_NAME).filter(|name| *name != own_pod).map(str::to_owned);
        Ok(Self { naming, warm_pod, holder: spec.holder_identity, recorded })
    }

    /// Returns the record of the sandbox, whose Pod of this generation is `pod`.
    pub(super) fn record(&self, config: &RawConfig, pod: Option<&Pod>) -> Record {
        let state = self.place_state(&config.namespace, pod);
        let guest = pod.and_then(GuestDelivery::of);
        Record {
            facts: pod.map(facts).unwrap_or_default(),
            ..self.recorded.record(&config.namespace, &config.label_prefix, pod, state, guest)
        }
    }

    fn place_state(&self, namespace: &str, pod: Option<&Pod>) -> PlaceState {
        // Before that the Pod may not exist yet.
        let Some(uid) = &self.pod_uid else { return PlaceState::Alive };
        loss::place_state(pod, namespace, &self.pod_name(), uid)
    }
}

/// Returns the network and the limits of a Pod.
fn facts(pod: &Pod) -> Facts {
    let (label, denied) = NETWORK_LABEL;
    let is_denied = pod.labels().get(label).is_some_and(|value| value == denied);
    Facts { network: Some(if is_denied { "none" } else { "open" }), limits: limits(pod), state_dir: None }
}

impl Anchors {
    pub(super) fn new(client: &Client, config: &RawConfig) -> Self {
        let leases: Api<Lease> = Api::namespaced(client.clone(), &config.namespace);
        let watch = SharedWatch::new(leases.clone(), OURS);
        Self { leases, watch, prefix: config.label_prefix.clone(), naming: config.naming }
    }

    /// Creates an anchor and returns whether the call of this `holder` created it. An existing one is not changed.
    /// `owner` owns a new one until its guest is bound.
    pub(super) async fn create(
        &self,
        id: &SandboxId,
        wanted: &CreateSpec,
        (spec_hash, source): (&str, &Source),
        holder: &str,
        owner: Option<&OwnerReference>,
    ) -> Result<(Anchor, bool)> {
        let mut lease = manifest(&self.prefix, id, wanted, spec_hash, source, holder);
        if let Some(note) = self.naming.note() {
            lease["metadata"]["annotations"][NAMING] = note.into();
        }
        if let Some(owner) = owner {
            lease["metadata"]["ownerReferences"] = json!([owner]);
        }
        self.naming.annotate(&mut lease);
        let lease: Lease = object(lease)?;
        match within(self.leases.create(&PostParams::default(), &lease)).await {
            Ok(created) => Ok((Anchor::read(created)?, true)),
            Err(cause) if is(&cause, 409) => {
                let anchor = self.find(id).await?.ok_or_else(|| vanished(id))?;
                let ours = anchor.is_held_by(holder);
                Ok((anchor, ours))
            }
            Err(cause) => Err(Error::api(&format!("create Lease '{id}'"), &cause)),
        }
    }

    /// Returns the anchor of a sandbox, unless it does not exist or is being deleted.
    pub(super) async fn find(&self, id: &SandboxId) -> Result<Option<Anchor>> {
        let lease = find(&self.leases, id.as_str()).await?;
        let alive = lease.filter(|lease| lease.metadata.deletion_timestamp.is_none());
        alive.map(Anchor::read).transpose()
    }

    /// Returns one page of anchors, and the cursor of the next page.
    pub(super) async fn list(&self, query: &Query) -> Result<(Vec<Anchor>, Option<String>)> {
        let (leases, cursor) = page(&self.leases, &self.prefix, query, OURS).await?;
        let alive = leases.into_iter().filter(|lease| lease.metadata.deletion_timestamp.is_none());
        // A damaged anchor is skipped, so that it hides no other.
        Ok((alive.filter_map(|lease| Anchor::read(lease).ok()).collect(), cursor))
    }

    /// Records the Pod of this generation. Returns false if the anchor has changed since it was read.
    pub(super) async fn record_pod(&self, anchor: &Anchor, pod_uid: &str) -> Result<bool> {
        let annotations = json!({ POD_NAME: anchor.pod_name(), POD_UID: pod_uid });
        self.change(anchor, json!({ "annotations": annotations }), json!({})).await
    }

    /// Begins the next generation, which has no Pod yet. Returns false if the anchor has changed since it was read.
    pub(super) async fn advance(&self, anchor: &Anchor, source: &Source) -> Result<bool> {
        let next = (anchor.generation + 1).to_string();
        let mut annotations = json!({ GENERATION: next, POD_UID: null, CREATED_AT: null, SETUP_UNTIL: null });
        for (key, value) in source.annotations() {
            annotations[key] = json!(value);
        }
        // A generation that no caller was given had no files of users.
        if anchor.created_at.is_some() {
            annotations[UNREPORTED_LOSS] = anchor.generation.to_string().into();
        }
        self.change(anchor, json!({ "annotations": annotations }), json!({})).await
    }

    /// Records another source of this generation's Pod. Returns false if the anchor has changed since it was read.
    pub(super) async fn record_source(&self, anchor: &Anchor, source: &Source) -> Result<bool> {
        let annotations: BTreeMap<_, _> = source.annotations().into();
        self.change(anchor, json!({ "annotations": annotations }), json!({})).await
    }

    /// Changes the lifetime. Returns false if the anchor has changed since it was read.
    pub(super) async fn set_ttl(&self, record: &Record, ttl: Duration) -> Result<bool> {
        let metadata = json!({
            "uid": record.uid,
            "resourceVersion": record.version,
            "annotations": { TTL: ttl.as_secs().to_string() },
        });
        self.patch(&record.id, json!({ "metadata": metadata })).await
    }

    /// Records that the sandbox is used now.
    pub(super) async fn touch(&self, id: &SandboxId, uid: &str) -> Result<()> {
        let now = Timestamp::now();
        let patch = json!({
            "metadata": { "uid": uid, "annotations": self.activity(now) },
            "spec": { "renewTime": micros(now) },
        });
        self.patch(id, patch).await.map(drop)
    }

    /// Returns the annotation of the last use, if the naming has one.
    fn activity(&self, now: Timestamp) -> BTreeMap<String, String> {
        self.naming.alias(LAST_ACTIVITY).map(|name| (name, now.to_string())).into_iter().collect()
    }

    pub(super) async fn delete(&self, anchor: &Anchor) -> Result<()> {
        api::delete(&self.leases, anchor.id.as_str(), &anchor.uid).await
    }

    /// Deletes the anchor as it was read. Returns false if it has changed since.
    pub(super) async fn delete_read(&self, anchor: &Anchor) -> Result<bool> {
        let gone = self.delete_unchanged(&anchor.id, &anchor.uid, &anchor.resource_version).await?;
        Ok(gone || self.find(&anchor.id).await?.is_none_or(|found| found.uid != anchor.uid))
    }

    /// Deletes the anchor as it was read. Returns false if it has changed since, or is gone.
    pub(super) async fn delete_unchanged(&self, id: &SandboxId, uid: &str, version: &str) -> Result<bool> {
        let deleted = api::delete_unchanged(&self.leases, id.as_str(), uid, version).await;
        deleted.map_err(|cause| Error::api(&format!("delete Lease '{id}'"), &cause))
    }

    pub(super) async fn wait_gone(&self, id: &SandboxId, uid: &str) -> Result<()> {
        api::wait_gone(&self.watch, id.as_str(), uid).await
    }

    async fn change(&self, anchor: &Anchor, mut metadata: Value, spec: Value) -> Result<bool> {
        metadata["uid"] = anchor.uid.as_str().into();
        metadata["resourceVersion"] = anchor.resource_version.as_str().into();
        self.patch(&anchor.id, json!({ "metadata": metadata, "spec": spec })).await
    }

    /// Patches an anchor. Returns false if the preconditions of the patch do not hold.
    async fn patch(&self, id: &SandboxId, mut patch: Value) -> Result<bool> {
        self.naming.annotate(&mut patch);
        let changed = api::patch(&self.leases, id.as_str(), &patch).await;
        changed.map_err(|cause| Error::api(&format!("update Lease '{id}'"), &cause))
    }
}

impl AnchorStore for Anchors {
    type Anchor = Anchor;

    async fn read(&self, id: &SandboxId) -> Result<Option<Anchor>> {
        self.find(id).await
    }

    async fn changed(&self, anchor: &Anchor) -> Result<()> {
        api::changed(&self.watch, anchor.id.as_str(), &anchor.resource_version).await
    }

    async fn record_setup(&self, anchor: &Anchor, until: Timestamp) -> Result<bool> {
        let annotations = json!({ SETUP_UNTIL: until.to_string() });
        self.change(anchor, json!({ "annotations": annotations }), json!({})).await
    }

    async fn record_bound(&self, anchor: &Anchor, place: &Place) -> Result<bool> {
        let now = Timestamp::now();
        let mut annotations = json!(self.activity(now));
        annotations[CREATED_AT] = now.to_string().into();
        annotations[POLICY_SHA256] = place.policy_sha256.map(PolicyHash::to_hex).into();
        // The sandbox is finished, so the Job that would end it no longer owns it.
        let metadata = json!({ "annotations": annotations, "ownerReferences": null });
        self.change(anchor, metadata, json!({ "renewTime": micros(now) })).await
    }

    async fn record_reported(&self, anchor: &Anchor) -> Result<bool> {
        self.change(anchor, json!({ "annotations": { UNREPORTED_LOSS: null } }), json!({})).await
    }
}

fn manifest(
    prefix: &str,
    id: &SandboxId,
    wanted: &CreateSpec,
    spec_hash: &str,
    source: &Source,
    holder: &str,
) -> Value {
    let about =
        [(SPEC_HASH, Some(spec_hash)), (GENERATION, Some("1"))].into_iter().chain(source.annotations());
    let about = about.filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned())));
    json!({
        "metadata": {
            "name": id.as_str(),
            "labels": labels(prefix, id, wanted),
            "annotations": spec_annotations(prefix, wanted).chain(about).collect::<BTreeMap<_, _>>(),
        },
        "spec": { "holderIdentity": holder },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::kubernetes::anchor::ID_LABEL;

    #[test]
    fn labels_are_returned_as_given_even_if_no_label_value_can_hold_them() {
        let wanted = CreateSpec {
            labels: [("team", "search"), ("user", "alice@example.com")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ttl: Some(Duration::from_millis(1500)),
            ..CreateSpec::default()
        };
        for prefix in ["sandpod.dev/", "agents.example.com/"] {
            let mut lease =
                manifest(prefix, &"a".parse().unwrap(), &wanted, "hash", &Source::New(None), "holder");
            assert_eq!(lease["metadata"]["labels"][format!("{prefix}user")], "ff8d9819fc0e");
            assert_eq!(lease["metadata"]["labels"][ID_LABEL], "a");
            lease["metadata"]["uid"] = "1".into();
            lease["metadata"]["resourceVersion"] = "2".into();
            let config = RawConfig { label_prefix: prefix.to_owned(), ..RawConfig::default() };

            let record = Anchor::read(serde_json::from_value(lease).unwrap()).unwrap().record(&config, None);

            assert_eq!(record.labels, wanted.labels);
            assert_eq!((record.ttl, record.idle_ttl), (Some(Duration::from_secs(2)), None));
            assert_eq!(record.place_state, PlaceState::Alive);
        }
    }

    #[test]
    fn an_anchor_names_its_pod_from_a_pool_or_of_its_own() {
        let read = |source| {
            let mut lease =
                manifest("x/", &"a".parse().unwrap(), &CreateSpec::default(), "hash", &source, "holder");
            lease["metadata"]["uid"] = "1".into();
            lease["metadata"]["resourceVersion"] = "2".into();
            Anchor::read(serde_json::from_value(lease).unwrap()).unwrap()
        };
        let warm = read(Source::Pool("sandpod-pool-x-3".to_owned()));
        assert_eq!((warm.pod_name().as_str(), warm.is_warm()), ("sandpod-pool-x-3", true));
        let cold = read(Source::New(Some("none was there".to_owned())));
        assert_eq!((cold.pod_name().as_str(), cold.is_warm()), ("a-1", false));
        assert_eq!(cold.record(&RawConfig::default(), None).annotations[COLD_REASON], "none was there");
    }

    #[test]
    fn a_foreign_lease_is_not_a_sandbox() {
        let lease = json!({ "metadata": { "name": "a", "uid": "1", "resourceVersion": "2" } });
        let error = Anchor::read(serde_json::from_value(lease).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    }
}
