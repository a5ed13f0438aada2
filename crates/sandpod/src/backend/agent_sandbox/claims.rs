//! The `SandboxClaim` of a sandbox. Its creation is the only lock, and it owns the Sandbox, which owns the Pod.
//!
//! It has the annotations that a Lease has in raw mode, under the same names.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::time::Duration;

use sandpod_kube::agent_sandbox::{SandboxClaim, SandboxClaimStatus};
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::k8s_openapi::jiff::Timestamp;
use sandpod_kube::kube::api::PostParams;
use sandpod_kube::kube::{Api, Client, ResourceExt};
use sandpod_kube::watch::SharedWatch;
use serde_json::{Value, json};

use super::lifecycle::{end, lifecycle};
use super::pools::Origin;
use super::readiness::{self, ClaimState};
use crate::backend::kubernetes::anchor::{
    CREATED_AT, GENERATION, LAST_ACTIVITY, MANAGED_BY, OURS, POD_UID, POLICY_SHA256, Recorded, SETUP_UNTIL,
    TTL, UNREPORTED_LOSS, labels, page, spec_annotations, time,
};
use crate::backend::kubernetes::anchor_store::AnchorStore;
use crate::backend::kubernetes::api::{self, find, is, within};
use crate::backend::kubernetes::delivery::{DELIVERY, REASON};
use crate::backend::kubernetes::outage::{making_limit, unfinished_lifetime};
use crate::backend::kubernetes::{limits, loss, object};
use crate::backend::{
    AnnotationChange, CreateSpec, Facts, GuestDelivery, Lost, Place, PlaceState, PolicyHash, Query, Record,
};
use crate::{AgentSandboxConfig, Error, ErrorKind, Naming, Result, SandboxId};

/// Identifies the call that created the claim, so that a call without a response recognises its own claim.
const HOLDER: &str = "sandpod.dev/holder";
/// The connection mode that was used last, and why none before it was.
pub(crate) const CONNECTION: &str = "sandpod.dev/connection";
pub(crate) const CONNECTION_REASON: &str = "sandpod.dev/connection-reason";
/// The mount paths of durable volumes, one per line.
pub(super) const DURABLE_DIRS: &str = "sandpod.dev/durable-dirs";
/// The sandbox has its own policy, which no object of the cluster holds.
const OWN_POLICY: &str = "sandpod.dev/own-policy";
/// When the sandbox was suspended. Removed when it is resumed.
const SUSPENDED_AT: &str = "sandpod.dev/suspended-at";
/// agent-sandbox measures from it how long its users wait.
const FIRST_REQUESTED: &str = "agents.x-k8s.io/client-first-requested-at";
/// The controller records here which Sandbox a claim gets, before the claim's status names it.
const GIVEN: &str = "agents.x-k8s.io/sandbox-name";
/// Follows the number of the lost generation if its volumes were kept.
const KEPT_VOLUMES: &str = " but for its volumes";

/// The claims of one namespace.
#[derive(Clone)]
pub(super) struct Claims {
    api: Api<SandboxClaim>,
    /// Watches our claims.
    pub(super) watch: SharedWatch<SandboxClaim>,
    /// Watches all claims, for adopted ones.
    watch_any: SharedWatch<SandboxClaim>,
    /// The prefix of users' labels.
    prefix: String,
    naming: Naming,
    /// The fields of a claim's spec besides its pool.
    spec: Value,
    /// The longest time that creating a sandbox takes.
    making_limit: Duration,
}

/// What a new claim is made from.
struct NewClaim<'a> {
    generation: u32,
    origin: &'a Origin,
    /// Identifies the call.
    holder: &'a str,
    ttl: Option<Duration>,
}

/// A sandbox's claim, as it was read.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) recorded: Recorded,
    /// Not created by sandpod: nothing may be written on it.
    pub(super) adopted: bool,
    /// The pool that it names. Empty in v1alpha1.
    pub(super) pool: String,
    pub(super) status: SandboxClaimStatus,
}

impl Deref for Claim {
    type Target = Recorded;

    fn deref(&self) -> &Recorded {
        &self.recorded
    }
}

impl Claim {
    /// Parses a claim of ours.
    pub(super) fn read(claim: SandboxClaim) -> Result<Self> {
        if is_ours(&claim) { Self::parse(claim) } else { Err(foreign(&claim.name_any())) }
    }

    /// Parses any claim. The labels and annotations of a foreign claim are ignored.
    pub(super) fn read_any(mut claim: SandboxClaim) -> Result<Self> {
        if is_ours(&claim) {
            return Self::parse(claim);
        }
        let first = [(GENERATION.to_owned(), "1".to_owned())].into();
        (claim.metadata.labels, claim.metadata.annotations) = (None, Some(first));
        Ok(Self { adopted: true, ..Self::parse(claim)? })
    }

    fn parse(claim: SandboxClaim) -> Result<Self> {
        let name = claim.name_any();
        let SandboxClaim { metadata, spec, status } = claim;
        Ok(Self {
            recorded: Recorded::parse(metadata)?.ok_or_else(|| foreign(&name))?,
            adopted: false,
            pool: spec.warm_pool_ref.map(|pool| pool.name).unwrap_or_default(),
            status: status.unwrap_or_default(),
        })
    }

    /// Whether the call of this holder created it.
    pub(super) fn is_held_by(&self, holder: &str) -> bool {
        self.annotations.get(HOLDER).map(String::as_str) == Some(holder)
    }

    /// Whether both have the same Pod, generation and progress.
    pub(super) fn has_place_of(&self, other: &Self) -> bool {
        let place = |claim: &Self| {
            let name = claim.pod_name().to_owned();
            (claim.uid.clone(), claim.generation, name, claim.pod_uid.clone(), claim.is_bound())
        };
        place(self) == place(other)
    }

    /// Whether it has these annotations already.
    pub(super) fn says(&self, notes: &[AnnotationChange]) -> bool {
        notes.iter().all(|(name, value)| self.annotations.get(*name) == value.as_ref())
    }

    /// Whether this generation's guest was bound.
    pub(super) fn is_bound(&self) -> bool {
        self.created_at.is_some() || self.setup_until.is_some()
    }

    /// Whether sandpod suspends the sandbox, or has done so.
    pub(super) fn is_being_suspended(&self) -> bool {
        self.annotations.contains_key(SUSPENDED_AT)
    }

    /// Whether its guest was bound to a policy that only its caller has.
    pub(super) fn has_own_policy(&self) -> bool {
        self.annotations.contains_key(OWN_POLICY)
    }

    /// Returns the loss of an earlier generation that no caller was told of.
    pub(super) fn unreported_loss(&self) -> Option<Lost> {
        let note = self.annotations.get(UNREPORTED_LOSS)?;
        let kept = if note.ends_with(KEPT_VOLUMES) { durable_dirs(&self.annotations) } else { Vec::new() };
        Some(Lost { kept })
    }

    /// Returns the loss that the next generation has to report when this one's Pod is lost, with its volumes or
    /// without. None if no caller was given this generation and no older loss is unreported.
    fn loss_note(&self, with_volumes: bool) -> Option<String> {
        let older = self.annotations.get(UNREPORTED_LOSS);
        let is_whole = older.is_some_and(|note| !note.ends_with(KEPT_VOLUMES));
        // The caller who suspends it knows what is kept.
        let was_ordered = self.is_being_suspended() && !with_volumes;
        if self.created_at.is_none() || was_ordered || is_whole {
            return older.cloned();
        }
        Some(format!("{}{}", self.generation, if with_volumes { "" } else { KEPT_VOLUMES }))
    }

    /// Returns the name of its Pod as far as the controller has named it. A Pod made for the claim has the claim's
    /// name.
    pub(super) fn pod_name(&self) -> &str {
        let named = self.status.sandbox.as_ref().map(|sandbox| &sandbox.name);
        let given = named.filter(|name| !name.is_empty()).or_else(|| self.annotations.get(GIVEN));
        given.map_or(self.id.as_str(), String::as_str)
    }

    /// Returns the record of the sandbox, whose Pod is `pod`.
    pub(super) fn record(&self, config: &AgentSandboxConfig, pod: Option<&Pod>) -> Record {
        let state = self.place_state(&config.namespace, pod);
        let guest = GuestDelivery::noted(&self.annotations);
        let facts = Facts { limits: pod.map(limits).unwrap_or_default(), ..Facts::default() };
        Record { facts, ..self.recorded.record(&config.namespace, &config.label_prefix, pod, state, guest) }
    }

    fn place_state(&self, namespace: &str, pod: Option<&Pod>) -> PlaceState {
        match readiness::claim_state(self) {
            ClaimState::Ended(_) => return PlaceState::Ended,
            ClaimState::Suspended => return PlaceState::Suspended,
            ClaimState::Lost(_) | ClaimState::Refused(_) => return PlaceState::Lost,
            ClaimState::Ready | ClaimState::Waiting(_) => {}
        }
        // Before that the Pod may not exist yet.
        let Some(uid) = &self.pod_uid else { return PlaceState::Alive };
        loss::place_state(pod, namespace, self.pod_name(), uid)
    }
}

impl Claims {
    pub(super) fn new(client: &Client, config: &AgentSandboxConfig) -> Self {
        let api: Api<SandboxClaim> = Api::namespaced(client.clone(), &config.namespace);
        let (watch, watch_any) = (SharedWatch::new(api.clone(), OURS), SharedWatch::new(api.clone(), ""));
        let (prefix, naming) = (config.label_prefix.clone(), config.naming);
        let startup_limit = Duration::from_secs(config.startup_timeout_seconds);
        let making_limit = making_limit(startup_limit, config.setup_script.is_some());
        Self { api, watch, watch_any, prefix, naming, spec: spec(config), making_limit }
    }

    /// Watches this claim.
    pub(super) fn follow(&self, claim: &Claim) -> api::Watch<SandboxClaim> {
        let watch = if claim.adopted { &self.watch_any } else { &self.watch };
        api::Watch::new(watch, claim.id.as_str())
    }

    /// Creates a claim on a sandbox of that origin, and returns whether the call of this `holder` created it. An
    /// existing claim is not changed.
    pub(super) async fn create(
        &self,
        id: &SandboxId,
        wanted: &CreateSpec,
        origin: &Origin,
        holder: &str,
    ) -> Result<(Claim, bool)> {
        let labels = labels(&self.prefix, id, wanted);
        let own_policy = wanted.own_policy.then(|| (OWN_POLICY.to_owned(), "true".to_owned()));
        let annotations = spec_annotations(&self.prefix, wanted).chain(own_policy).collect();
        let making = NewClaim { generation: 1, origin, holder, ttl: wanted.ttl };
        self.create_with(id, labels, annotations, &making).await
    }

    /// Creates a claim in the place of a lost one, with all that its owner wrote on it.
    pub(super) async fn create_again(&self, lost: &Claim, origin: &Origin) -> Result<Claim> {
        let ended = [
            GENERATION,
            POD_UID,
            CREATED_AT,
            SETUP_UNTIL,
            LAST_ACTIVITY,
            CONNECTION,
            CONNECTION_REASON,
            DURABLE_DIRS,
            SUSPENDED_AT,
            DELIVERY,
            REASON,
        ];
        let mut annotations = lost.annotations.clone();
        // Annotations of the controllers belong to the lost sandbox.
        annotations.retain(|key, _| !ended.contains(&key.as_str()) && !key.contains("x-k8s.io/"));
        annotations.extend(lost.loss_note(true).map(|note| (UNREPORTED_LOSS.to_owned(), note)));
        for alias in ended.iter().filter_map(|key| self.naming.alias(key)) {
            annotations.remove(&alias);
        }
        let holder = SandboxId::random()?.to_string();
        let making = NewClaim { generation: lost.generation + 1, origin, holder: &holder, ttl: lost.ttl };
        Ok(self.create_with(&lost.id, lost.labels.clone(), annotations, &making).await?.0)
    }

    async fn create_with(
        &self,
        id: &SandboxId,
        labels: BTreeMap<String, String>,
        mut annotations: BTreeMap<String, String>,
        making: &NewClaim<'_>,
    ) -> Result<(Claim, bool)> {
        let now = Timestamp::now();
        let own = [
            (GENERATION, making.generation.to_string()),
            (HOLDER, making.holder.to_owned()),
            (FIRST_REQUESTED, now.to_string()),
        ];
        annotations.extend(own.map(|(key, value)| (key.to_owned(), value)));
        let lifetime = unfinished_lifetime(making.ttl, self.making_limit);
        let unfinished = json!({ "lifecycle": lifecycle(time(now).checked_add(lifetime), None) });
        let parts = [making.origin.spec(), self.spec.clone(), unfinished];
        let spec: BTreeMap<_, _> = parts.iter().filter_map(Value::as_object).flatten().collect();
        let mut claim = json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
            "kind": "SandboxClaim",
            "metadata": { "name": id.as_str(), "labels": labels, "annotations": annotations },
            "spec": spec,
        });
        self.naming.annotate(&mut claim);
        let claim: SandboxClaim = object(claim)?;
        match within(self.api.create(&PostParams::default(), &claim)).await {
            Ok(created) => Ok((Claim::read(created)?, true)),
            Err(cause) if is(&cause, 409) => {
                let claim = self.find(id).await?.ok_or_else(|| super::vanished(id))?;
                let ours = claim.is_held_by(making.holder);
                Ok((claim, ours))
            }
            Err(cause) => Err(super::refused(&format!("create SandboxClaim '{id}'"), &cause)),
        }
    }

    /// Returns the claim of a sandbox of ours, unless it does not exist or is being deleted.
    pub(super) async fn find(&self, id: &SandboxId) -> Result<Option<Claim>> {
        self.read_alive(id).await?.map(Claim::read).transpose()
    }

    /// Returns the claim, also if sandpod did not create it.
    pub(super) async fn find_any(&self, id: &SandboxId) -> Result<Option<Claim>> {
        self.read_alive(id).await?.map(Claim::read_any).transpose()
    }

    async fn read_alive(&self, id: &SandboxId) -> Result<Option<SandboxClaim>> {
        let claim = find(&self.api, id.as_str()).await.map_err(super::with_role_advice)?;
        Ok(claim.filter(|claim| claim.metadata.deletion_timestamp.is_none()))
    }

    /// Returns one page of claims, and the cursor of the next page.
    pub(super) async fn list(&self, query: &Query) -> Result<(Vec<Claim>, Option<String>)> {
        let listed = page(&self.api, &self.prefix, query, OURS).await;
        let (claims, cursor) = listed.map_err(super::with_role_advice)?;
        let alive = claims.into_iter().filter(|claim| claim.metadata.deletion_timestamp.is_none());
        // A damaged claim is skipped, so that it hides no other.
        Ok((alive.filter_map(|claim| Claim::read(claim).ok()).collect(), cursor))
    }

    /// Records the Pod of this generation and how its guest was reached. Returns false if the claim has changed since
    /// it was read.
    pub(super) async fn record_pod(&self, claim: &Claim, notes: &[AnnotationChange]) -> Result<bool> {
        self.change(claim, noted(json!({}), notes)).await
    }

    /// Records that the sandbox is suspended. Returns false if the claim has changed since it was read.
    pub(super) async fn record_suspended(&self, claim: &Claim) -> Result<bool> {
        self.change(claim, json!({ SUSPENDED_AT: Timestamp::now().to_string() })).await
    }

    /// Records that the sandbox is no longer suspended and kept its Pod. Returns false if the claim has changed.
    pub(super) async fn record_awake(&self, claim: &Claim) -> Result<bool> {
        self.change(claim, json!({ SUSPENDED_AT: null })).await
    }

    /// Begins the next generation in a Pod that has replaced the last one. Returns false if the claim has changed.
    pub(super) async fn advance(&self, claim: &Claim) -> Result<bool> {
        let next = (claim.generation + 1).to_string();
        let annotations = json!({
            GENERATION: next, POD_UID: null, CREATED_AT: null, SETUP_UNTIL: null, SUSPENDED_AT: null,
            UNREPORTED_LOSS: claim.loss_note(false),
        });
        self.change(claim, annotations).await
    }

    /// Changes the lifetime. Returns false if the claim has changed since it was read.
    pub(super) async fn set_ttl(&self, record: &Record, ttl: Duration) -> Result<bool> {
        let metadata = json!({
            "uid": record.uid,
            "resourceVersion": record.version,
            "annotations": { TTL: ttl.as_secs().to_string() },
        });
        let lifecycle = |created| lifecycle(end(created, Some(ttl)), record.idle_ttl);
        let spec = record.created_at.map(|created| json!({ "lifecycle": lifecycle(created) }));
        self.patch(&record.id, json!({ "metadata": metadata, "spec": spec.unwrap_or(json!({})) })).await
    }

    /// Records that the sandbox is used now.
    pub(super) async fn touch(&self, id: &SandboxId, uid: &str) -> Result<()> {
        let annotations = json!({ LAST_ACTIVITY: Timestamp::now().to_string() });
        self.patch(id, json!({ "metadata": { "uid": uid, "annotations": annotations } })).await.map(drop)
    }

    pub(super) async fn delete(&self, claim: &Claim) -> Result<()> {
        api::delete(&self.api, claim.id.as_str(), &claim.uid).await.map_err(super::with_role_advice)
    }

    /// Deletes the claim as it was read. Returns false if it has changed since, or is gone.
    pub(super) async fn delete_unchanged(&self, id: &SandboxId, uid: &str, version: &str) -> Result<bool> {
        let deleted = api::delete_unchanged(&self.api, id.as_str(), uid, version).await;
        deleted.map_err(|cause| super::refused(&format!("delete SandboxClaim '{id}'"), &cause))
    }

    /// Deletes the claim as it was read. Returns false if it has changed since.
    pub(super) async fn delete_read(&self, claim: &Claim) -> Result<bool> {
        let gone = self.delete_unchanged(&claim.id, &claim.uid, &claim.resource_version).await?;
        Ok(gone || self.find(&claim.id).await?.is_none_or(|found| found.uid != claim.uid))
    }

    pub(super) async fn wait_gone(&self, id: &SandboxId, uid: &str) -> Result<()> {
        api::wait_gone(&self.watch, id.as_str(), uid).await
    }

    async fn change(&self, claim: &Claim, annotations: Value) -> Result<bool> {
        self.change_with(claim, annotations, json!({})).await
    }

    async fn change_with(&self, claim: &Claim, annotations: Value, spec: Value) -> Result<bool> {
        let metadata = json!({
            "uid": claim.uid,
            "resourceVersion": claim.resource_version,
            "annotations": annotations,
        });
        self.patch(&claim.id, json!({ "metadata": metadata, "spec": spec })).await
    }

    /// Patches a claim. Returns false if the preconditions of the patch do not hold.
    async fn patch(&self, id: &SandboxId, mut patch: Value) -> Result<bool> {
        self.naming.annotate(&mut patch);
        let changed = api::patch(&self.api, id.as_str(), &patch).await;
        changed.map_err(|cause| super::refused(&format!("update SandboxClaim '{id}'"), &cause))
    }
}

impl AnchorStore for Claims {
    type Anchor = Claim;

    async fn read(&self, id: &SandboxId) -> Result<Option<Claim>> {
        self.find(id).await
    }

    async fn changed(&self, claim: &Claim) -> Result<()> {
        api::changed(&self.watch, claim.id.as_str(), &claim.resource_version).await
    }

    async fn record_setup(&self, claim: &Claim, until: Timestamp) -> Result<bool> {
        self.change(claim, json!({ SETUP_UNTIL: until.to_string() })).await
    }

    async fn record_bound(&self, claim: &Claim, place: &Place) -> Result<bool> {
        let now = Timestamp::now();
        let policy = place.policy_sha256.map(PolicyHash::to_hex);
        let annotations =
            json!({ CREATED_AT: now.to_string(), LAST_ACTIVITY: now.to_string(), POLICY_SHA256: policy });
        // Replaces the lifetime of an unfinished sandbox.
        let lifecycle = lifecycle(end(time(now), claim.ttl), claim.idle_ttl);
        self.change_with(claim, noted(annotations, &place.annotations), json!({ "lifecycle": lifecycle }))
            .await
    }

    async fn record_reported(&self, claim: &Claim) -> Result<bool> {
        self.change(claim, json!({ UNREPORTED_LOSS: null })).await
    }
}

/// Adds `notes` to the annotations.
fn noted(mut annotations: Value, notes: &[AnnotationChange]) -> Value {
    for (name, value) in notes {
        annotations[*name] = json!(value);
    }
    annotations
}

/// Returns the mount paths of durable volumes that a claim records.
pub(crate) fn durable_dirs(annotations: &BTreeMap<String, String>) -> Vec<String> {
    annotations.get(DURABLE_DIRS).map(|dirs| dirs.lines().map(str::to_owned).collect()).unwrap_or_default()
}

/// Returns the fields of every claim of this configuration besides its pool.
fn spec(config: &AgentSandboxConfig) -> Value {
    let AgentSandboxConfig { pod_labels, pod_annotations, volume_claim_templates, .. } = config;
    let metadata = json!({ "labels": pod_labels, "annotations": pod_annotations });
    let metadata = (!pod_labels.is_empty() || !pod_annotations.is_empty()).then_some(metadata);
    json!({ "additionalPodMetadata": metadata, "volumeClaimTemplates": volume_claim_templates })
}

fn is_ours(claim: &SandboxClaim) -> bool {
    claim.labels().get(MANAGED_BY.0).map(String::as_str) == Some(MANAGED_BY.1)
}

fn foreign(name: &str) -> Error {
    Error::new(
        ErrorKind::AlreadyExists,
        format!("The SandboxClaim '{name}' exists, but sandpod did not create it."),
        "Use another sandbox id, or adopt the claim: its owner keeps it then.",
    )
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn claim(changes: &Value) -> Claim {
        let mut claim = json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
            "kind": "SandboxClaim",
            "metadata": {
                "name": "a", "uid": "1", "resourceVersion": "2",
                "labels": { "app.kubernetes.io/managed-by": "sandpod", "sandpod.dev/id": "a", "sandpod.dev/team": "x" },
                "annotations": { "sandpod.dev/generation": "3", "sandpod.dev/pod-uid": "p" },
            },
            "spec": { "warmPoolRef": { "name": "pool" } },
        });
        if let Some(status) = changes.get("status") {
            claim["status"] = status.clone();
        }
        Claim::read(serde_json::from_value(claim).unwrap()).unwrap()
    }

    #[test]
    fn a_claim_has_the_annotations_of_a_lease() {
        let record = claim(&json!({})).record(&AgentSandboxConfig::of_template("t"), None);
        assert_eq!(record.labels, [("team".to_owned(), "x".to_owned())].into());
        assert_eq!((record.generation, record.uid.as_str(), record.version.as_str()), (3, "1", "2"));
        assert_eq!(record.place_state, PlaceState::Lost, "its Pod is gone");
    }

    #[test]
    fn an_unreported_loss_is_recorded_with_the_kept_directories() {
        let with = |notes: &[(&str, &str)]| {
            let mut claim = claim(&json!({}));
            let recorded = &mut claim.recorded;
            recorded
                .annotations
                .extend(notes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
            recorded.created_at = recorded.annotations.contains_key(CREATED_AT).then(SystemTime::now);
            claim
        };
        let used = (CREATED_AT, "2026-01-01T00:00:00Z");
        let lost = |claim: &Claim| claim.unreported_loss().map(|lost| lost.kept);

        assert_eq!(with(&[]).loss_note(true), None, "no caller was given it");
        assert_eq!(lost(&with(&[used])), None);
        assert_eq!(
            with(&[used, (SUSPENDED_AT, "2026-01-01T00:00:00Z")]).loss_note(false),
            None,
            "it is resumed"
        );
        let note = with(&[used]).loss_note(false).unwrap();
        assert_eq!(
            lost(&with(&[(UNREPORTED_LOSS, &note), (DURABLE_DIRS, "/data\n/home")])).unwrap(),
            ["/data", "/home"]
        );
        let whole = with(&[used, (UNREPORTED_LOSS, &note)]).loss_note(true).unwrap();
        assert_eq!(lost(&with(&[(UNREPORTED_LOSS, &whole), (DURABLE_DIRS, "/data")])).unwrap(), [""; 0]);
        let older = with(&[used, (UNREPORTED_LOSS, &whole)]).loss_note(false);
        assert_eq!(older, Some(whole), "the loss of everything is still unreported");
    }

    #[test]
    fn an_expired_claim_has_ended_and_one_whose_pod_failed_is_lost() {
        for (reason, fate) in [
            ("ClaimExpired", PlaceState::Ended),
            ("PodSucceeded", PlaceState::Ended),
            ("PodFailed", PlaceState::Lost),
        ] {
            let ready = json!([{
                "type": "Ready", "status": "False", "reason": reason, "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]);
            let claim = claim(&json!({ "status": { "conditions": ready } }));
            assert_eq!(
                claim.record(&AgentSandboxConfig::of_template("t"), None).place_state,
                fate,
                "{reason}"
            );
        }
    }

    #[test]
    fn a_foreign_claim_is_not_a_sandbox() {
        let claim = json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
            "metadata": { "name": "a", "uid": "1", "resourceVersion": "2" },
            "spec": { "warmPoolRef": { "name": "pool" } },
        });
        let claim: SandboxClaim = serde_json::from_value(claim).unwrap();
        assert_eq!(Claim::read(claim.clone()).unwrap_err().kind(), ErrorKind::AlreadyExists);
        let adopted = Claim::read_any(claim).unwrap();
        assert!(adopted.adopted && adopted.generation == 1);
    }

    #[test]
    fn annotations_of_an_adopted_claim_are_ignored() {
        let claim = json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
            "metadata": {
                "name": "a", "uid": "1", "resourceVersion": "2", "labels": { "sandpod.dev/team": "x" },
                "annotations": { "sandpod.dev/generation": "7", "sandpod.dev/pod-uid": "p", "sandpod.dev/ttl-seconds": "1" },
            },
            "spec": { "warmPoolRef": { "name": "pool" } },
        });
        let adopted = Claim::read_any(serde_json::from_value(claim).unwrap()).unwrap();
        assert_eq!((adopted.generation, adopted.pod_uid.as_deref(), adopted.ttl), (1, None, None));
        assert!(adopted.labels.is_empty());
    }
}
