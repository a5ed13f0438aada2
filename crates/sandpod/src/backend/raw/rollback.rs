//! Taking back what was made when it comes to nothing, also when the caller gives up.
//!
//! Another caller may have attached to it meanwhile. Who has bound the guest notes that in the anchor, and every step
//! here is conditional on the anchor as it was read: so what somebody uses stays.

use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::ResourceExt;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::anchor::Anchor;
use super::home::Home;
use super::{MAX_TURNS, Raw, api, contended};
use crate::{Result, SandboxId};

/// What a call has made so far. Dropped without [`Rollback::disarm`] it goes, in a task of its own.
pub(crate) struct Rollback {
    raw: Raw,
    /// Where it goes on: a future can be dropped outside of every runtime.
    runtime: Handle,
    made: Option<Made>,
    /// The sandbox's namespace, if this call made it.
    home: Option<(SandboxId, Home)>,
}

/// An anchor of which we made at least a part.
struct Made {
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

impl Rollback {
    pub(super) fn new(raw: &Raw) -> Self {
        Self { raw: raw.clone(), runtime: Handle::current(), made: None, home: None }
    }

    pub(super) fn home_made(&mut self, id: &SandboxId, home: &Home) {
        self.home = Some((id.clone(), home.clone()));
    }

    pub(super) fn has_home(&self) -> bool {
        self.home.is_some()
    }

    pub(super) fn anchor_made(&mut self, anchor: &Anchor) {
        self.made(anchor).anchor = true;
    }

    pub(super) fn pod_made(&mut self, anchor: &Anchor, pod: &Pod) {
        let (generation, name) = (anchor.generation, pod.name_any());
        self.made(anchor).pod = pod.uid().map(|uid| MadePod { generation, name, uid });
    }

    /// All is well: what was made stays.
    pub(crate) fn disarm(mut self) {
        (self.made, self.home) = (None, None);
    }

    /// Takes everything back now, also if the caller gives up meanwhile.
    pub(crate) async fn run(mut self) {
        if let Some(taking_back) = self.start()
            && taking_back.await.is_err()
        {
            tracing::warn!("taking back a sandbox that did not start was interrupted");
        }
    }

    fn made(&mut self, anchor: &Anchor) -> &mut Made {
        let (id, uid) = (anchor.id.clone(), anchor.uid.clone());
        self.made.get_or_insert(Made { id, uid, anchor: false, pod: None })
    }

    /// Takes everything back in a task of its own, if there is anything.
    fn start(&mut self) -> Option<JoinHandle<()>> {
        let (made, home, raw) = (self.made.take(), self.home.take(), self.raw.clone());
        if made.is_none() && home.is_none() {
            return None;
        }
        Some(self.runtime.spawn(async move {
            if let Err(error) = take_back(&raw, made, home).await {
                tracing::warn!(%error, "a sandbox that did not start could not be taken back");
            }
        }))
    }
}

impl Drop for Rollback {
    fn drop(&mut self) {
        self.start();
    }
}

async fn take_back(raw: &Raw, made: Option<Made>, home: Option<(SandboxId, Home)>) -> Result<()> {
    if let Some(made) = made {
        made.take_back(raw).await?;
    }
    // An anchor that is left is another caller's, and so is the namespace then.
    match home {
        Some((id, home)) if raw.0.anchors.find(&id).await?.is_none() => raw.0.homes.delete(&home).await,
        _ => Ok(()),
    }
}

impl Made {
    async fn take_back(&self, raw: &Raw) -> Result<()> {
        for _ in 0..MAX_TURNS {
            let anchor = raw.0.anchors.find(&self.id).await?.filter(|anchor| anchor.uid == self.uid);
            let done = match &anchor {
                Some(anchor) if anchor.bound => return Ok(()),
                Some(anchor) if self.anchor => raw.0.anchors.delete_unchanged(anchor).await?,
                // It was there before us: whoever asks for it next makes a new Pod.
                Some(anchor) if self.pod.as_ref().is_some_and(|pod| pod.generation == anchor.generation) => {
                    raw.0.anchors.advance(anchor).await?
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
