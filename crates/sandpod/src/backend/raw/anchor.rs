//! The Lease that a sandbox is: its creation is the only lock, and it owns all other objects of the sandbox.

use std::collections::BTreeMap;

use sandpod_kube::k8s_openapi::api::coordination::v1::Lease;
use sandpod_kube::k8s_openapi::jiff::Timestamp;
use sandpod_kube::kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use sandpod_kube::kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::api::{self, Watch, find, is, within};
use crate::{Error, ErrorKind, Result, SandboxId};

pub(super) const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "sandpod");
pub(super) const ID_LABEL: &str = "sandpod.dev/id";
const SPEC_HASH: &str = "sandpod.dev/spec-hash";
const GENERATION: &str = "sandpod.dev/generation";
const POD_NAME: &str = "sandpod.dev/pod-name";
const POD_UID: &str = "sandpod.dev/pod-uid";
const BOUND_AT: &str = "sandpod.dev/bound-at";
const SETUP_UNTIL: &str = "sandpod.dev/setup-until";

/// The Leases of one namespace.
#[derive(Clone)]
pub(super) struct Anchors(Api<Lease>);

/// A sandbox's Lease, as it was read.
#[derive(Clone, Debug)]
pub(super) struct Anchor {
    pub(super) id: SandboxId,
    pub(super) uid: String,
    /// Counts the places that the sandbox had.
    pub(super) generation: u32,
    /// The Pod of this generation, once it is known to be there.
    pub(super) pod_uid: Option<String>,
    /// This generation's guest was bound: somebody uses it.
    pub(super) bound: bool,
    /// Somebody sets this generation's place up, until then at the latest.
    pub(super) setup_until: Option<Timestamp>,
    resource_version: String,
    holder: Option<String>,
}

impl Anchor {
    /// The name of this generation's Pod. Who finds none may create it: of two only one can.
    pub(super) fn pod_name(&self) -> String {
        format!("{}-{}", self.id, self.generation)
    }

    /// Setting this generation's place up was begun and never ended.
    pub(super) fn is_half_set_up(&self) -> bool {
        !self.bound && self.setup_until.is_some_and(|until| until < Timestamp::now())
    }

    fn read(id: &SandboxId, lease: &Lease) -> Result<Self> {
        let foreign = || {
            Error::new(
                ErrorKind::AlreadyExists,
                format!("The Lease '{id}' is there, but it is no sandbox."),
                "Use another sandbox id.",
            )
        };
        if lease.labels().get(MANAGED_BY.0).map(String::as_str) != Some(MANAGED_BY.1) {
            return Err(foreign());
        }
        let annotation = |name: &str| lease.annotations().get(name).filter(|value| !value.is_empty());
        let generation = annotation(GENERATION).and_then(|text| text.parse().ok()).ok_or_else(foreign)?;
        Ok(Self {
            id: id.clone(),
            uid: lease.uid().ok_or_else(foreign)?,
            generation,
            pod_uid: annotation(POD_UID).cloned(),
            bound: annotation(BOUND_AT).is_some(),
            setup_until: annotation(SETUP_UNTIL).and_then(|text| text.parse().ok()),
            resource_version: lease.resource_version().ok_or_else(foreign)?,
            holder: lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone()),
        })
    }
}

impl Anchors {
    pub(super) fn new(client: &Client, namespace: &str) -> Self {
        Self(Api::namespaced(client.clone(), namespace))
    }

    /// The anchor, and whether this call made it. One that is there already is not changed.
    pub(super) async fn create(
        &self,
        id: &SandboxId,
        labels: &BTreeMap<String, String>,
        spec_hash: &str,
    ) -> Result<(Anchor, bool)> {
        // A create that was answered too late is sent again and finds its own work: by this name it knows it.
        let holder = SandboxId::random()?.to_string();
        let lease = json!({
            "metadata": {
                "name": id.as_str(),
                "labels": labels,
                "annotations": { SPEC_HASH: spec_hash, GENERATION: "1" },
            },
            "spec": { "holderIdentity": holder },
        });
        let lease: Lease = super::object(lease)?;
        match within(self.0.create(&PostParams::default(), &lease)).await {
            Ok(created) => Ok((Anchor::read(id, &created)?, true)),
            Err(cause) if is(&cause, 409) => {
                let anchor = self.find(id).await?.ok_or_else(|| vanished(id))?;
                let ours = anchor.holder.as_deref() == Some(&holder);
                Ok((anchor, ours))
            }
            Err(cause) => Err(Error::api(&format!("create Lease '{id}'"), &cause)),
        }
    }

    /// The anchor of a sandbox, unless there is none or it is being deleted.
    pub(super) async fn find(&self, id: &SandboxId) -> Result<Option<Anchor>> {
        let lease = find(&self.0, id.as_str()).await?;
        let alive = lease.filter(|lease| lease.metadata.deletion_timestamp.is_none());
        alive.map(|lease| Anchor::read(id, &lease)).transpose()
    }

    /// Notes the Pod of this generation; false when the anchor has changed since it was read.
    pub(super) async fn record_pod(&self, anchor: &Anchor, pod_uid: &str) -> Result<bool> {
        self.annotate(anchor, &json!({ POD_NAME: anchor.pod_name(), POD_UID: pod_uid })).await
    }

    /// Begins the next generation, whose Pod isn't there yet; false when the anchor has changed since it was read.
    pub(super) async fn advance(&self, anchor: &Anchor) -> Result<bool> {
        let next = (anchor.generation + 1).to_string();
        let changes =
            json!({ GENERATION: next, POD_NAME: null, POD_UID: null, BOUND_AT: null, SETUP_UNTIL: null });
        self.annotate(anchor, &changes).await
    }

    /// Notes that the guest of this generation is bound; false when the anchor has changed since it was read.
    pub(super) async fn record_bound(&self, anchor: &Anchor) -> Result<bool> {
        self.annotate(anchor, &json!({ BOUND_AT: Timestamp::now().to_string() })).await
    }

    /// Notes that this generation's place is being set up; false when the anchor has changed since it was read.
    pub(super) async fn record_setup(&self, anchor: &Anchor, until: Timestamp) -> Result<bool> {
        self.annotate(anchor, &json!({ SETUP_UNTIL: until.to_string() })).await
    }

    /// Waits until the anchor is no more as it was read.
    pub(super) async fn changed(&self, anchor: &Anchor) -> Result<()> {
        let mut watch = Watch::new(&self.0, anchor.id.as_str());
        let same = |lease: &Lease| lease.resource_version().as_deref() == Some(&anchor.resource_version);
        while watch.next().await?.is_some_and(|lease| same(&lease)) {}
        Ok(())
    }

    pub(super) async fn delete(&self, anchor: &Anchor) -> Result<()> {
        api::delete(&self.0, anchor.id.as_str(), &anchor.uid).await
    }

    /// Deletes the anchor as it was read; false when it has changed since.
    pub(super) async fn delete_unchanged(&self, anchor: &Anchor) -> Result<bool> {
        let exactly = Preconditions {
            uid: Some(anchor.uid.clone()),
            resource_version: Some(anchor.resource_version.clone()),
        };
        let how = DeleteParams::background().preconditions(exactly);
        match within(self.0.delete(anchor.id.as_str(), &how)).await {
            Ok(_) => Ok(true),
            Err(cause) if is(&cause, 404) => Ok(true),
            Err(cause) if is(&cause, 409) => Ok(false),
            Err(cause) => Err(Error::api(&format!("delete Lease '{}'", anchor.id), &cause)),
        }
    }

    pub(super) async fn wait_gone(&self, id: &SandboxId, uid: &str) -> Result<()> {
        api::wait_gone(&self.0, id.as_str(), uid).await
    }

    async fn annotate(&self, anchor: &Anchor, annotations: &serde_json::Value) -> Result<bool> {
        let patch = json!({ "metadata": {
            "uid": anchor.uid,
            "resourceVersion": anchor.resource_version,
            "annotations": annotations,
        }});
        let id = anchor.id.as_str();
        match within(self.0.patch(id, &PatchParams::default(), &Patch::Merge(&patch))).await {
            Ok(_) => Ok(true),
            Err(cause) if is(&cause, 409) || is(&cause, 404) => Ok(false),
            Err(cause) => Err(Error::api(&format!("update Lease '{id}'"), &cause)),
        }
    }
}

/// The anchor went while we worked on it.
pub(super) fn vanished(id: &SandboxId) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!("Sandbox '{id}' was deleted by somebody else meanwhile."),
        "Create it again, if it is still needed.",
    )
}
