//! Provisions: gives an anchor a running Pod with a guest.

use std::collections::BTreeMap;
use std::time::Duration;

use sandpod_kube::exec::PodRef;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use sandpod_kube::kube::api::PostParams;
use sandpod_kube::kube::{Api, ResourceExt};
use tokio::time::{Instant, timeout};
use tracing::Instrument as _;

use super::anchor::{Anchor, Source};
use super::created_objects::CreatedObjects;
use super::{PodDialer, Raw, is_owned_by, network, pod, push};
use crate::backend::kubernetes::anchor::vanished;
use crate::backend::kubernetes::api::{self, Watch, find, is, within};
use crate::backend::kubernetes::loss::loss;
use crate::backend::kubernetes::outage::{goes_on, outlast};
use crate::backend::kubernetes::startup::Awaited;
use crate::backend::kubernetes::{MAX_TURNS, contended};
use crate::backend::{GuestDelivery, Lost, OnLost, Place, Provisioned, slot};
use crate::error::CREATE_AGAIN;
use crate::{Error, ErrorKind, Result, SandboxId};

/// How long a Pod may take from being counted by a shared quota to being visible.
const RIVAL_LIMIT: Duration = Duration::from_secs(1);
/// The same in a sandbox's own namespace, where only another caller for the same sandbox can have used up the quota.
const LONE_RIVAL_LIMIT: Duration = Duration::from_secs(10);

/// The Pod of a sandbox.
struct SandboxPod {
    anchor: Anchor,
    pod: PodRef,
    pod_uid: String,
    /// The Pod as it was read.
    seen: Option<Pod>,
}

/// What a caller wants of an anchor.
#[derive(Clone, Copy)]
pub(super) enum Intent {
    /// Attach to its place.
    Attach(OnLost),
    /// Attach to its place, or make its first one.
    Create(OnLost),
}

impl Intent {
    /// Returns what to do without a place. A place that no caller was given is not lost but still to be made.
    fn on_lost(self, anchor: &Anchor) -> OnLost {
        match self {
            Self::Create(_) if anchor.created_at.is_none() => OnLost::Recreate,
            Self::Create(on_lost) | Self::Attach(on_lost) => on_lost,
        }
    }
}

impl Raw {
    /// Provisions the anchor, and rolls back if that fails.
    pub(super) async fn finish(
        &self,
        anchor: Anchor,
        mut created: CreatedObjects,
        intent: Intent,
    ) -> Result<Provisioned> {
        match self.provision_through_outages(anchor, &mut created, intent).await {
            Ok(sandbox_pod) => Ok(self.made(sandbox_pod, created)),
            Err(error) => {
                created.into_rollback().run().await;
                Err(error)
            }
        }
    }

    fn made(&self, sandbox_pod: SandboxPod, created: CreatedObjects) -> Provisioned {
        let SandboxPod { anchor, pod, pod_uid, .. } = sandbox_pod;
        let used_at = anchor.used_at();
        let place = Place {
            id: anchor.id.clone(),
            lost: anchor.has_unreported_loss().then(Lost::default),
            uid: anchor.uid.clone(),
            generation: anchor.generation,
            name: pod.to_string(),
            hint: format!("See what its guest says: kubectl logs -n {} {}", pod.namespace, pod.name),
            ttl: anchor.ttl,
            idle_ttl: anchor.idle_ttl,
            bound: anchor.created_at.is_some(),
            used_at: Some(used_at),
            token_sha256: None,
            policy_sha256: anchor.policy_sha256,
            annotations: Vec::new(),
            dirs: None,
        };
        let dialer = PodDialer { raw: self.clone(), pod, uid: pod_uid, id: anchor.recorded.id };
        Provisioned { place, dialer: Box::new(dialer), rollback: created.into_rollback() }
    }

    /// Provisions, and continues from the anchor as it is then after each outage.
    async fn provision_through_outages(
        &self,
        mut anchor: Anchor,
        created: &mut CreatedObjects,
        intent: Intent,
    ) -> Result<SandboxPod> {
        let (id, end) = (anchor.id.clone(), Instant::now() + self.startup_limit());
        loop {
            match Box::pin(self.provision(anchor, created, intent)).await {
                Err(error) if goes_on(&error, end).await => {
                    anchor = outlast(end, || self.read_again(&id)).await?;
                }
                provisioned => return provisioned,
            }
        }
    }

    async fn provision(
        &self,
        mut anchor: Anchor,
        created: &mut CreatedObjects,
        intent: Intent,
    ) -> Result<SandboxPod> {
        let mut losses = 0;
        for _ in 0..MAX_TURNS {
            let on_lost = intent.on_lost(&anchor);
            let working = slot().await?;
            let provisioned = Box::pin(self.provision_step(&anchor, created, on_lost, &mut losses)).await?;
            drop(working);
            if let Some(sandbox_pod) = provisioned {
                let pod = match self.wait_running(&sandbox_pod).await {
                    Err(error)
                        if on_lost == OnLost::Recreate
                            && self.guest_image_failed(&sandbox_pod.pod.name, &error).await? =>
                    {
                        self.start_over(&sandbox_pod).await?;
                        anchor = self.read_again(&anchor.id).await?;
                        continue;
                    }
                    running => running?,
                };
                self.push_guest(&sandbox_pod, &pod).await?;
                let sealed = anchor.created_at.is_some() || on_lost == OnLost::Error;
                if sealed || self.0.image_contents.confirm(&pod).await {
                    return Ok(sandbox_pod);
                }
                self.start_over(&sandbox_pod).await?;
            }
            anchor = self.read_again(&anchor.id).await?;
            created.keep_only(&anchor).await?;
        }
        Err(contended(&anchor.id))
    }

    /// Pushes the guest if it does not come with the Pod, so that a failure shows up now.
    async fn push_guest(&self, sandbox_pod: &SandboxPod, pod: &Pod) -> Result<()> {
        match GuestDelivery::of(pod) {
            Some((GuestDelivery::Push, _)) => push::start(self, &sandbox_pod.pod).await.map(drop),
            _ => Ok(()),
        }
    }

    async fn read_again(&self, id: &SandboxId) -> Result<Anchor> {
        self.0.anchors.find(id).await?.ok_or_else(|| vanished(id))
    }

    /// Gives up a Pod that hides files of its image or got no guest, unless it is in use.
    async fn start_over(&self, sandbox_pod: &SandboxPod) -> Result<()> {
        let anchor = self.read_again(&sandbox_pod.anchor.id).await?;
        let same = anchor.uid == sandbox_pod.anchor.uid && anchor.generation == sandbox_pod.anchor.generation;
        let why = anchor.is_warm().then(|| "The Pod from the pool hid files of its image.".to_owned());
        if same && anchor.created_at.is_none() && self.0.anchors.advance(&anchor, &Source::New(why)).await? {
            self.discard(&sandbox_pod.pod.name, &sandbox_pod.pod_uid).await?;
        }
        Ok(())
    }

    /// Deletes a Pod that another one replaces.
    async fn discard(&self, name: &str, uid: &str) -> Result<()> {
        api::delete(&self.0.pods, name, uid).await?;
        if self.config().namespace_per_sandbox {
            // The quota has room for one Pod.
            api::wait_gone(&self.0.pod_watch, name, uid).await?;
        }
        Ok(())
    }

    /// Returns the Pod of this anchor, or none if the anchor has to be read again.
    async fn provision_step(
        &self,
        anchor: &Anchor,
        created: &mut CreatedObjects,
        on_lost: OnLost,
        losses: &mut usize,
    ) -> Result<Option<SandboxPod>> {
        let (name, namespace) = (anchor.pod_name(), &self.config().namespace);
        let pod = match (&anchor.pod_uid, on_lost) {
            (None, OnLost::Recreate) if anchor.is_warm() => {
                let Some(pod) = self.take(anchor, created, losses).await? else { return Ok(None) };
                Some(pod)
            }
            (None, OnLost::Recreate) => self.ensure_pod(anchor, created).await?,
            _ => find(&self.0.pods, &name)
                .await?
                .filter(|pod| anchor.pod_uid.is_some() || is_owned_by(pod, anchor)),
        };
        let pod_uid = pod.as_ref().and_then(ResourceExt::uid).unwrap_or_default();
        let expected = anchor.pod_uid.as_ref().unwrap_or(&pod_uid);
        let half = || format!("The set-up of Pod '{name}' was not finished.");
        let lost = loss(pod.as_ref(), namespace, &name, expected);
        if let Some(reason) = lost.or_else(|| anchor.is_half_set_up().then(half)) {
            if on_lost == OnLost::Error {
                let message = format!("{reason} Sandbox '{}' may have been deleted.", anchor.id);
                return Err(Error::new(ErrorKind::NotFound, message, CREATE_AGAIN));
            }
            if pod.as_ref().is_some_and(|pod| is_owned_by(pod, anchor)) {
                self.discard(&name, &pod_uid).await?;
            }
            self.0.anchors.advance(anchor, &self.source(0).await).await?;
            return Ok(None);
        }
        if anchor.pod_uid.is_none() && !self.0.anchors.record_pod(anchor, &pod_uid).await? {
            return Ok(None);
        }
        Ok(Some(SandboxPod { anchor: anchor.clone(), pod: PodRef::new(namespace, name), pod_uid, seen: pod }))
    }

    /// Takes the Pod of a pool that this generation names. If another sandbox has it, records what to try next.
    async fn take(
        &self,
        anchor: &Anchor,
        created: &mut CreatedObjects,
        losses: &mut usize,
    ) -> Result<Option<Pod>> {
        let span = tracing::info_span!("warm_claim", sandbox = %anchor.id, pod = anchor.pod_name());
        let Some((pod, taken)) = self.take_named_pod(anchor).instrument(span).await? else {
            *losses += 1;
            let source = self.source(*losses).await;
            self.0.anchors.record_source(anchor, &source).await?;
            return Ok(None);
        };
        if taken {
            created.pod_made(anchor, &pod);
        }
        Ok(Some(pod))
    }

    /// Creates the deny-all policy, if the configuration blocks the network.
    pub(super) async fn ensure_network(&self) -> Result<()> {
        if self.config().block_network {
            network::ensure(&Api::namespaced(self.0.client.clone(), &self.config().namespace)).await?;
        }
        Ok(())
    }

    /// Returns a new Pod, after creating what it needs in the namespace.
    pub(super) async fn planned_pod(
        &self,
        name: String,
        labels: BTreeMap<String, String>,
        owner: OwnerReference,
    ) -> Result<Pod> {
        let chosen = self.prepare_delivery().await?;
        self.ensure_network().await?;
        let mut spec = pod::spec(self.config(), &self.guest_source(chosen.delivery).await?)?;
        self.0.image_contents.plan(&mut spec).await?;
        let mut pod = pod::manifest(self.config(), name, labels, owner, spec)?;
        chosen.note_on(&mut pod);
        Ok(pod)
    }

    /// Returns the Pod of this generation, created if it does not exist. None if the name is taken by a foreign Pod.
    async fn ensure_pod(&self, anchor: &Anchor, created: &mut CreatedObjects) -> Result<Option<Pod>> {
        let name = anchor.pod_name();
        // A new anchor has no Pod yet. If another caller has created one, the create request fails.
        if !created.has_made(anchor)
            && let Some(pod) = find(&self.0.pods, &name).await?
        {
            return Ok(Some(pod).filter(|pod| is_owned_by(pod, anchor)));
        }
        let owner = pod::owner(anchor.id.as_str(), &anchor.uid);
        let pod = self.planned_pod(name.clone(), anchor.pod_labels(), owner).await?;
        match within(self.0.pods.create(&PostParams::default(), &pod)).await {
            Ok(new) => {
                created.pod_made(anchor, &new);
                pod::check_whole(&pod, &new)?;
                Ok(Some(new))
            }
            Err(cause) if is(&cause, 409) => {
                Ok(find(&self.0.pods, &name).await?.filter(|pod| is_owned_by(pod, anchor)))
            }
            Err(cause) => {
                let error = Error::api(&format!("create Pod '{name}'"), &cause);
                match self.rival(&name, anchor, &error).await? {
                    Some(pod) => Ok(Some(pod)),
                    None => Err(error),
                }
            }
        }
    }

    /// Returns the Pod of another caller for the same anchor, after a quota with room for one refused ours. The quota
    /// may count it before it is visible.
    async fn rival(&self, name: &str, anchor: &Anchor, refusal: &Error) -> Result<Option<Pod>> {
        if refusal.kind() != ErrorKind::QuotaExceeded {
            return Ok(None);
        }
        let mut watch = Watch::new(&self.0.pod_watch, name);
        let appearing = async {
            loop {
                if let Some(pod) = watch.next().await? {
                    return Ok(Some(Pod::clone(&pod)).filter(|pod| is_owned_by(pod, anchor)));
                }
            }
        };
        let limit = if self.config().namespace_per_sandbox { LONE_RIVAL_LIMIT } else { RIVAL_LIMIT };
        timeout(limit, appearing).await.unwrap_or(Ok(None))
    }

    async fn wait_running(&self, sandbox_pod: &SandboxPod) -> Result<Pod> {
        let awaited = Awaited {
            pods: &self.0.pods,
            watch: &self.0.pod_watch,
            namespace: &sandbox_pod.pod.namespace,
            name: &sandbox_pod.pod.name,
            uid: &sandbox_pod.pod_uid,
            limit: self.startup_limit(),
            node_grace: Duration::from_secs(self.config().unschedulable_grace_seconds),
        };
        // A Pod that runs already, as from a pool, is not watched.
        match awaited.running_already(sandbox_pod.seen.as_ref()) {
            Some(pod) => Ok(pod),
            None => awaited.running().await,
        }
    }
}
