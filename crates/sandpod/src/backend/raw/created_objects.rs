//! The objects that a call has created, to delete them if it fails or is cancelled.
//!
//! Another caller may have attached to the sandbox meanwhile. Binding the guest is recorded on the anchor, and every
//! step of the rollback is conditional on the anchor as it was read: a sandbox that is in use stays.

use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::ResourceExt;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::Raw;
use super::anchor::Anchor;
use crate::backend::Rollback;
use crate::backend::kubernetes::outage::{UNDO_LIMIT, outlast};
use crate::backend::kubernetes::{MAX_TURNS, api, contended};
use crate::{Result, SandboxId};

/// What a call has created so far. If it is dropped, a task of its own deletes it.
pub(super) struct CreatedObjects {
    raw: Raw,
    /// Runs the rollback: a future can be dropped outside of every runtime.
    runtime: Handle,
    made: Option<Provisioned>,
}

/// The parts of one sandbox that the call has created.
struct Provisioned {
    id: SandboxId,
    uid: String,
    /// The anchor itself, and not only a Pod of it.
    anchor: bool,
    pod: Option<MadePod>,
}

struct MadePod {
    generation: u32,
    name: String,
    uid: String,
}

impl CreatedObjects {
    pub(super) fn new(raw: &Raw) -> Self {
        Self { raw: raw.clone(), runtime: Handle::current(), made: None }
    }

    pub(super) fn anchor_made(&mut self, anchor: &Anchor) {
        self.made(anchor).anchor = true;
    }

    /// Whether this call created the anchor, and no Pod for it yet.
    pub(super) fn has_made(&self, anchor: &Anchor) -> bool {
        self.made.as_ref().is_some_and(|made| made.anchor && made.uid == anchor.uid && made.pod.is_none())
    }

    pub(super) fn pod_made(&mut self, anchor: &Anchor, pod: &Pod) {
        let (generation, name) = (anchor.generation, pod.name_any());
        self.made(anchor).pod = pod.uid().map(|uid| MadePod { generation, name, uid });
    }

    /// Deletes the Pod that was created or taken, if the anchor has got another one meanwhile.
    pub(super) async fn keep_only(&mut self, anchor: &Anchor) -> Result<()> {
        let pod = self.made.as_mut().and_then(|made| made.pod.take_if(|pod| pod.name != anchor.pod_name()));
        match pod {
            Some(pod) => api::delete(&self.raw.0.pods, &pod.name, &pod.uid).await,
            None => Ok(()),
        }
    }

    /// Converts it into a rollback that can be disarmed.
    pub(super) fn into_rollback(mut self) -> Rollback {
        match self.made.take() {
            Some(made) => undo(self.raw.clone(), made),
            None => Rollback::none(),
        }
    }

    fn made(&mut self, anchor: &Anchor) -> &mut Provisioned {
        let (id, uid) = (anchor.id.clone(), anchor.uid.clone());
        self.made.get_or_insert(Provisioned { id, uid, anchor: false, pod: None })
    }
}

/// Rolls back when a caller is cancelled.
impl Drop for CreatedObjects {
    fn drop(&mut self) {
        if let Some(made) = self.made.take() {
            let _guard = self.runtime.enter();
            drop(undo(self.raw.clone(), made));
        }
    }
}

/// Deletes the anchor that the call of `holder` may have created without a response.
pub(super) fn unanswered(raw: &Raw, id: &SandboxId, holder: &str) -> Rollback {
    let (raw, id, holder) = (raw.clone(), id.clone(), holder.to_owned());
    Rollback::new(async move {
        let find = || async {
            let anchor = raw.0.anchors.find(&id).await?.filter(|anchor| anchor.is_held_by(&holder));
            let Some(anchor) = anchor else { return Ok(()) };
            Provisioned { id: anchor.recorded.id, uid: anchor.recorded.uid, anchor: true, pod: None }
                .take_back(&raw)
                .await
        };
        report(&id, outlast(Instant::now() + UNDO_LIMIT, find).await);
    })
}

fn undo(raw: Raw, made: Provisioned) -> Rollback {
    Rollback::new(async move {
        let undone = outlast(Instant::now() + UNDO_LIMIT, || made.take_back(&raw)).await;
        report(&made.id, undone);
    })
}

/// Logs that objects of a failed creation stay.
pub(super) fn report(id: &SandboxId, undone: Result<()>) {
    if let Err(error) = undone {
        tracing::warn!(%id, %error, "a sandbox that did not start could not be deleted");
    }
}

impl Provisioned {
    async fn take_back(&self, raw: &Raw) -> Result<()> {
        for _ in 0..MAX_TURNS {
            let anchor = raw.0.anchors.find(&self.id).await?.filter(|anchor| anchor.uid == self.uid);
            let done = match &anchor {
                Some(anchor) if anchor.created_at.is_some() => return Ok(()),
                Some(anchor) if self.anchor => raw.0.anchors.delete_read(anchor).await?,
                // The anchor existed before: the next caller creates a new Pod.
                Some(anchor) if self.pod.as_ref().is_some_and(|pod| pod.generation == anchor.generation) => {
                    let source = raw.source(0).await;
                    raw.0.anchors.advance(anchor, &source).await?
                }
                _ => true,
            };
            if done {
                return match &self.pod {
                    Some(pod) => api::delete(&raw.0.pods, &pod.name, &pod.uid).await,
                    None => Ok(()),
                };
            }
        }
        Err(contended(&self.id))
    }
}
