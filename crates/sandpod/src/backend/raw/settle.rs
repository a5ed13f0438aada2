//! From an anchor to a Pod that runs.

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
use super::rollback::Rollback;
use super::{PodDialer, Raw, network, owned, pod, push};
use crate::backend::kubernetes::anchor::vanished;
use crate::backend::kubernetes::api::{self, Watch, find, is, within};
use crate::backend::kubernetes::loss::loss;
use crate::backend::kubernetes::outage::{goes_on, outlast};
use crate::backend::kubernetes::startup::Awaited;
use crate::backend::kubernetes::{MAX_TURNS, contended};
use crate::backend::{GuestDelivery, Lost, OnLost, Place, Provisioned, slot};
use crate::error::CREATE_AGAIN;
use crate::{Error, ErrorKind, Result, SandboxId};

/// How long a Pod may take from being counted to being there, where others may have used up the quota.
const RIVAL_LIMIT: Duration = Duration::from_secs(1);
/// The same in a sandbox's own namespace, where only a rival can have done so.
const LONE_RIVAL_LIMIT: Duration = Duration::from_secs(10);

/// A Pod that is a sandbox's place.
struct Spot {
    anchor: Anchor,
    pod: PodRef,
    pod_uid: String,
    /// The Pod as it was read.
    seen: Option<Pod>,
}

/// What a caller wants of an anchor.
#[derive(Clone, Copy)]
pub(super) enum Wish {
    /// The place that it has, or what to do if that is lost.
    Find(OnLost),
    /// The same, or its first one.
    Make(OnLost),
}

impl Wish {
    /// What to do without a place. One that nobody was given yet is not lost but still to be made.
    fn on_lost(self, anchor: &Anchor) -> OnLost {
        match self {
            Self::Make(_) if anchor.created_at.is_none() => OnLost::Recreate,
            Self::Make(on_lost) | Self::Find(on_lost) => on_lost,
        }
    }
}

impl Raw {
    /// Brings the anchor to a Pod that runs, and takes back what it made if it can't.
    pub(super) async fn finish(
        &self,
        anchor: Anchor,
        mut rollback: Rollback,
        wish: Wish,
    ) -> Result<Provisioned> {
        match self.settle_through_outages(anchor, &mut rollback, wish).await {
            Ok(spot) => Ok(self.made(spot, rollback)),
            Err(error) => {
                rollback.into_undo().run().await;
                Err(error)
            }
        }
    }

    fn made(&self, spot: Spot, rollback: Rollback) -> Provisioned {
        let Spot { anchor, pod, pod_uid, .. } = spot;
        let used_at = anchor.used_at();
        let place = Place {
            id: anchor.id.clone(),
            lost: anchor.has_unreported_loss().then(Lost::default),
            claim: anchor.uid,
            generation: anchor.generation,
            name: pod.to_string(),
            hint: format!("See what its guest says: kubectl logs -n {} {}", pod.namespace, pod.name),
            ttl: anchor.ttl,
            idle_ttl: anchor.idle_ttl,
            bound: anchor.created_at.is_some(),
            used_at: Some(used_at),
            token_sha256: None,
            policy_sha256: anchor.policy_sha256,
            notes: Vec::new(),
            dirs: None,
        };
        let dialer = PodDialer { raw: self.clone(), pod, uid: pod_uid, id: anchor.id };
        Provisioned { place, dialer: Box::new(dialer), undo: rollback.into_undo() }
    }

    /// Settles, and goes on from the anchor as it is then after each outage.
    async fn settle_through_outages(
        &self,
        mut anchor: Anchor,
        rollback: &mut Rollback,
        wish: Wish,
    ) -> Result<Spot> {
        let (id, end) = (anchor.id.clone(), Instant::now() + self.startup_limit());
        loop {
            match Box::pin(self.settle(anchor, rollback, wish)).await {
                Err(error) if goes_on(&error, end).await => {
                    anchor = outlast(end, || self.read_again(&id)).await?;
                }
                settled => return settled,
            }
        }
    }

    async fn settle(&self, mut anchor: Anchor, rollback: &mut Rollback, wish: Wish) -> Result<Spot> {
        let mut losses = 0;
        for _ in 0..MAX_TURNS {
            let on_lost = wish.on_lost(&anchor);
            let working = slot().await?;
            let settled = Box::pin(self.turn(&anchor, rollback, on_lost, &mut losses)).await?;
            drop(working);
            if let Some(spot) = settled {
                let pod = match self.wait_running(&spot).await {
                    Err(error)
                        if on_lost == OnLost::Recreate
                            && self.guest_image_failed(&spot.pod.name, &error).await? =>
                    {
                        self.start_over(&spot).await?;
                        anchor = self.read_again(&anchor.id).await?;
                        continue;
                    }
                    running => running?,
                };
                self.push_guest(&spot, &pod).await?;
                let sealed = anchor.created_at.is_some() || on_lost == OnLost::Error;
                if sealed || self.0.seeds.confirm(&pod).await {
                    return Ok(spot);
                }
                self.start_over(&spot).await?;
            }
            anchor = self.read_again(&anchor.id).await?;
            rollback.keep_only(&anchor).await?;
        }
        Err(contended(&anchor.id))
    }

    /// A guest that does not come with the Pod comes now, so that what keeps it away is known at once.
    async fn push_guest(&self, spot: &Spot, pod: &Pod) -> Result<()> {
        match GuestDelivery::of(pod) {
            Some((GuestDelivery::Push, _)) => push::start(self, &spot.pod).await.map(drop),
            _ => Ok(()),
        }
    }

    async fn read_again(&self, id: &SandboxId) -> Result<Anchor> {
        self.0.anchors.find(id).await?.ok_or_else(|| vanished(id))
    }

    /// Gives up a Pod that hides what its image has or got no guest, unless somebody uses it already.
    async fn start_over(&self, spot: &Spot) -> Result<()> {
        let anchor = self.read_again(&spot.anchor.id).await?;
        let same = anchor.uid == spot.anchor.uid && anchor.generation == spot.anchor.generation;
        let why = anchor.is_warm().then(|| "The Pod from the pool hid what its image has.".to_owned());
        if same && anchor.created_at.is_none() && self.0.anchors.advance(&anchor, &Source::New(why)).await? {
            self.discard(&spot.pod.name, &spot.pod_uid).await?;
        }
        Ok(())
    }

    /// Deletes a Pod that another one takes the place of.
    async fn discard(&self, name: &str, uid: &str) -> Result<()> {
        api::delete(&self.0.pods, name, uid).await?;
        if self.config().namespace_per_sandbox {
            // The quota has room for one Pod.
            api::wait_gone(&self.0.pod_watch, name, uid).await?;
        }
        Ok(())
    }

    /// The place of this anchor, or none if the anchor has to be read again.
    async fn turn(
        &self,
        anchor: &Anchor,
        rollback: &mut Rollback,
        on_lost: OnLost,
        losses: &mut usize,
    ) -> Result<Option<Spot>> {
        let (name, namespace) = (anchor.pod_name(), &self.config().namespace);
        let pod = match (&anchor.pod_uid, on_lost) {
            (None, OnLost::Recreate) if anchor.is_warm() => {
                let Some(pod) = self.take(anchor, rollback, losses).await? else { return Ok(None) };
                Some(pod)
            }
            (None, OnLost::Recreate) => self.ensure_pod(anchor, rollback).await?,
            _ => {
                find(&self.0.pods, &name).await?.filter(|pod| anchor.pod_uid.is_some() || owned(pod, anchor))
            }
        };
        let pod_uid = pod.as_ref().and_then(ResourceExt::uid).unwrap_or_default();
        let expected = anchor.pod_uid.as_ref().unwrap_or(&pod_uid);
        let half = || format!("Pod '{name}' was never set up to the end.");
        let lost = loss(pod.as_ref(), namespace, &name, expected);
        if let Some(reason) = lost.or_else(|| anchor.is_half_set_up().then(half)) {
            if on_lost == OnLost::Error {
                let message = format!("{reason} Sandbox '{}' may have been deleted.", anchor.id);
                return Err(Error::new(ErrorKind::NotFound, message, CREATE_AGAIN));
            }
            if pod.as_ref().is_some_and(|pod| owned(pod, anchor)) {
                self.discard(&name, &pod_uid).await?;
            }
            self.0.anchors.advance(anchor, &self.source(0).await).await?;
            return Ok(None);
        }
        if anchor.pod_uid.is_none() && !self.0.anchors.record_pod(anchor, &pod_uid).await? {
            return Ok(None);
        }
        Ok(Some(Spot { anchor: anchor.clone(), pod: PodRef::new(namespace, name), pod_uid, seen: pod }))
    }

    /// The Pod of a pool that this generation is to have; if another has it, the anchor says then what to try next.
    async fn take(
        &self,
        anchor: &Anchor,
        rollback: &mut Rollback,
        losses: &mut usize,
    ) -> Result<Option<Pod>> {
        let span = tracing::info_span!("warm_claim", sandbox = %anchor.id, pod = anchor.pod_name());
        let Some((pod, taken)) = self.claim(anchor).instrument(span).await? else {
            *losses += 1;
            let source = self.source(*losses).await;
            self.0.anchors.record_source(anchor, &source).await?;
            return Ok(None);
        };
        if taken {
            rollback.pod_made(anchor, &pod);
        }
        Ok(Some(pod))
    }

    /// Ensures the deny-all policy, if the configuration blocks the network.
    pub(super) async fn ensure_network(&self) -> Result<()> {
        if self.config().block_network {
            network::ensure(&Api::namespaced(self.0.client.clone(), &self.config().namespace)).await?;
        }
        Ok(())
    }

    /// A new Pod, when all is there that it needs.
    pub(super) async fn planned_pod(
        &self,
        name: String,
        labels: BTreeMap<String, String>,
        owner: OwnerReference,
    ) -> Result<Pod> {
        let step = self.place_guest().await?;
        self.ensure_network().await?;
        let mut spec = pod::spec(self.config(), &self.guest_source(step.delivery).await?)?;
        self.0.seeds.plan(&mut spec).await?;
        let mut pod = pod::manifest(self.config(), name, labels, owner, spec)?;
        step.note_on(&mut pod);
        Ok(pod)
    }

    /// The Pod of this generation, made if it isn't there; none if the name is taken by a Pod that isn't ours.
    async fn ensure_pod(&self, anchor: &Anchor, rollback: &mut Rollback) -> Result<Option<Pod>> {
        let name = anchor.pod_name();
        // What this call has just made is nobody else's, most often; if it is, the name is taken.
        if !rollback.has_made(anchor)
            && let Some(pod) = find(&self.0.pods, &name).await?
        {
            return Ok(Some(pod).filter(|pod| owned(pod, anchor)));
        }
        let owner = pod::owner(anchor.id.as_str(), &anchor.uid);
        let pod = self.planned_pod(name.clone(), anchor.pod_labels(), owner).await?;
        match within(self.0.pods.create(&PostParams::default(), &pod)).await {
            Ok(created) => {
                rollback.pod_made(anchor, &created);
                pod::check_whole(&pod, &created)?;
                Ok(Some(created))
            }
            Err(cause) if is(&cause, 409) => {
                Ok(find(&self.0.pods, &name).await?.filter(|pod| owned(pod, anchor)))
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

    /// The Pod of another caller for the same anchor, which a quota with room for one refused ours for. It may have been
    /// counted before it is there.
    async fn rival(&self, name: &str, anchor: &Anchor, refusal: &Error) -> Result<Option<Pod>> {
        if refusal.kind() != ErrorKind::QuotaExceeded {
            return Ok(None);
        }
        let mut watch = Watch::new(&self.0.pod_watch, name);
        let appearing = async {
            loop {
                if let Some(pod) = watch.next().await? {
                    return Ok(Some(Pod::clone(&pod)).filter(|pod| owned(pod, anchor)));
                }
            }
        };
        let limit = if self.config().namespace_per_sandbox { LONE_RIVAL_LIMIT } else { RIVAL_LIMIT };
        timeout(limit, appearing).await.unwrap_or(Ok(None))
    }

    async fn wait_running(&self, spot: &Spot) -> Result<Pod> {
        let awaited = Awaited {
            pods: &self.0.pods,
            watch: &self.0.pod_watch,
            namespace: &spot.pod.namespace,
            name: &spot.pod.name,
            uid: &spot.pod_uid,
            limit: self.startup_limit(),
            node_grace: Duration::from_secs(self.config().unschedulable_grace_seconds),
        };
        // One that runs already, as from a pool, is not watched.
        match awaited.running_already(spot.seen.as_ref()) {
            Some(pod) => Ok(pod),
            None => awaited.running().await,
        }
    }
}
