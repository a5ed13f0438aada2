//! Sandboxes as plain Pods.
//!
//! A sandbox is a Lease ([`anchor`]). It owns the Pod ([`pod`]), whose name holds the Lease's generation: so whoever
//! finds a Lease without its Pod can go on where another stopped, and two who do it at once end at the same Pod. The
//! guest comes from `ConfigMaps` ([`guest`]) and is reached through exec ([`dialer`]).

mod anchor;
mod api;
mod dialer;
mod guest;
mod home;
mod loss;
mod merge;
mod network;
mod pod;
mod rollback;
mod seed;
mod setup;
mod startup;
mod weakness;

use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use sandpod_kube::exec::PodRef;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::api::{ListParams, PostParams};
use sandpod_kube::kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use self::anchor::{Anchor, Anchors, ID_LABEL};
use self::api::{Watch, find, is, within};
pub(crate) use self::dialer::PodDialer;
use self::guest::GuestMaps;
use self::home::Homes;
use self::loss::loss;
pub(crate) use self::rollback::Rollback;
use self::seed::Seeds;
pub(crate) use self::setup::Setup;
use self::startup::Awaited;
use crate::guest_binaries;
use crate::{Error, ErrorKind, RawConfig, Result, SandboxId};

/// How long a Pod may take from being counted to being there.
const RIVAL_LIMIT: Duration = Duration::from_secs(1);
/// How often an anchor that others change meanwhile is read again.
const MAX_TURNS: usize = 16;

/// Whether the Pod of this configuration can be written and is no weaker than allowed.
pub(crate) fn check(config: &RawConfig) -> Result<()> {
    pod::spec(config, &[]).map(drop)
}

/// Makes, finds and deletes sandboxes in one namespace. Clones are the same.
#[derive(Clone)]
pub(crate) struct Raw(Arc<Inner>);

struct Inner {
    client: Client,
    config: RawConfig,
    guest: Arc<OnceCell<GuestMaps>>,
    homes: Homes,
    anchors: Anchors,
    pods: Api<Pod>,
    seeds: Arc<Seeds>,
}

/// Where a sandbox runs.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) id: SandboxId,
    /// Names the claim: the anchor's UID.
    pub(crate) claim: String,
    pub(crate) generation: u32,
    pub(crate) pod: PodRef,
    pod_uid: String,
    /// Somebody used it before.
    pub(crate) bound: bool,
}

impl Place {
    /// Whether it is the anchor's present one.
    fn is_of(&self, anchor: &Anchor) -> bool {
        anchor.uid == self.claim && anchor.generation == self.generation
    }
}

/// What to do with an anchor whose Pod is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum OnLost {
    Recreate,
    Error,
}

impl Raw {
    pub(crate) fn new(client: Client, config: RawConfig) -> Self {
        let seeds = Seeds::new(Api::namespaced(client.clone(), &config.namespace));
        Self::sharing(client, config, Arc::default(), Arc::new(seeds))
    }

    fn sharing(
        client: Client,
        config: RawConfig,
        guest: Arc<OnceCell<GuestMaps>>,
        seeds: Arc<Seeds>,
    ) -> Self {
        let anchors = Anchors::new(&client, &config.namespace);
        let pods = Api::namespaced(client.clone(), &config.namespace);
        let homes = Homes::new(&client);
        Self(Arc::new(Inner { client, config, guest, homes, anchors, pods, seeds }))
    }

    /// The same in another namespace. What is learned of images stays in the configuration's own.
    fn at(&self, namespace: &str) -> Self {
        if namespace == self.config().namespace {
            return self.clone();
        }
        let config = RawConfig { namespace: namespace.to_owned(), ..self.config().clone() };
        Self::sharing(self.0.client.clone(), config, self.0.guest.clone(), self.0.seeds.clone())
    }

    pub(crate) fn config(&self) -> &RawConfig {
        &self.0.config
    }

    /// Makes the sandbox `id`, or attaches to it if it is there. Keep the [`Rollback`] until the sandbox is in order.
    pub(crate) async fn create(&self, id: &SandboxId) -> Result<(Place, Rollback)> {
        if !self.config().namespace_per_sandbox {
            return self.create_here(id, Rollback::new(self)).await;
        }
        let (raw, id) = (self.clone(), id.clone());
        // In a task, for the same reason as below.
        let creating = tokio::spawn(async move {
            let (home, created) = raw.0.homes.create(raw.config(), &id).await?;
            let mut rollback = Rollback::new(&raw.at(&home.name));
            if created {
                rollback.home_made(&id, &home);
            }
            Ok::<_, Error>((home, id, rollback))
        });
        let (home, id, rollback) = creating.await.map_err(interrupted)??;
        let created = rollback.has_home();
        let made = match self.0.homes.furnish(self.config(), &home).await {
            Ok(()) => self.at(&home.name).create_here(&id, rollback).await,
            Err(error) => {
                rollback.run().await;
                Err(error)
            }
        };
        // Whoever made the namespace may have given it up meanwhile, with what we put there.
        match made {
            Err(_) if !created && self.0.homes.find(self.config(), &id).await?.is_none() => {
                Err(anchor::vanished(&id))
            }
            made => made,
        }
    }

    async fn create_here(&self, id: &SandboxId, mut rollback: Rollback) -> Result<(Place, Rollback)> {
        let guest = self.guest().await?;
        let names: Vec<_> = guest.names().map(str::to_owned).collect();
        let hash = pod::spec_hash(&pod::spec(self.config(), &names)?)?;
        let labels = pod::labels(self.config(), id);
        let (raw, id) = (self.clone(), id.clone());
        // In a task: when the caller gives up while the order is on its way, its result is dropped and so taken back.
        let creating = tokio::spawn(async move {
            let (anchor, created) = raw.0.anchors.create(&id, &labels, &hash).await?;
            if created {
                rollback.anchor_made(&anchor);
            }
            Ok::<_, Error>((anchor, rollback))
        });
        let (anchor, rollback) = creating.await.map_err(interrupted)??;
        self.finish(anchor, rollback, OnLost::Recreate).await
    }

    /// Attaches to the sandbox `id`, if it is there.
    pub(crate) async fn attach(&self, id: &SandboxId, on_lost: OnLost) -> Result<Option<(Place, Rollback)>> {
        let Some(raw) = self.home_of(id).await? else { return Ok(None) };
        match raw.0.anchors.find(id).await? {
            Some(anchor) => raw.finish(anchor, Rollback::new(&raw), on_lost).await.map(Some),
            None => Ok(None),
        }
    }

    /// This backend in the namespace that the sandbox `id` has, if it has one.
    async fn home_of(&self, id: &SandboxId) -> Result<Option<Self>> {
        if !self.config().namespace_per_sandbox {
            return Ok(Some(self.clone()));
        }
        let home = self.0.homes.find(self.config(), id).await?;
        Ok(home.map(|home| self.at(&home.name)))
    }

    /// Deletes the sandbox `id` with all that it has. With `wait` it returns when all is gone.
    pub(crate) async fn delete(&self, id: &SandboxId, wait: bool) -> Result<()> {
        if !self.config().namespace_per_sandbox {
            return self.delete_here(id, wait).await;
        }
        let Some(home) = self.0.homes.find(self.config(), id).await? else { return Ok(()) };
        self.0.homes.delete(&home).await?;
        if wait { self.0.homes.wait_gone(&home).await } else { Ok(()) }
    }

    async fn delete_here(&self, id: &SandboxId, wait: bool) -> Result<()> {
        let anchor = self.0.anchors.find(id).await?;
        if let Some(anchor) = &anchor {
            self.0.anchors.delete(anchor).await?;
        }
        // Somebody may be making a new sandbox of this id: its Pod is neither ours to delete nor to wait for.
        let pods: Vec<_> =
            self.pods_of(id).await?.into_iter().filter(|pod| goes_with(pod, anchor.as_ref())).collect();
        let pods: Vec<_> = pods.iter().filter_map(|pod| Some((pod.name_any(), pod.uid()?))).collect();
        // Garbage collection would do it too, a little later.
        try_join_all(pods.iter().map(|(name, uid)| api::delete(&self.0.pods, name, uid))).await?;
        if wait {
            try_join_all(pods.iter().map(|(name, uid)| api::wait_gone(&self.0.pods, name, uid))).await?;
            if let Some(anchor) = &anchor {
                self.0.anchors.wait_gone(id, &anchor.uid).await?;
            }
        }
        Ok(())
    }

    /// Opens streams to the guest in `place`.
    pub(crate) fn dialer(&self, place: &Place) -> PodDialer {
        PodDialer {
            client: self.0.client.clone(),
            pods: Api::namespaced(self.0.client.clone(), &place.pod.namespace),
            pod: place.pod.clone(),
            uid: place.pod_uid.clone(),
            id: place.id.clone(),
        }
    }

    /// Notes that the guest in `place` is bound. From here on nobody takes it back who only failed to make it.
    pub(crate) async fn keep(&self, place: &Place) -> Result<()> {
        if place.bound {
            return Ok(());
        }
        let raw = self.at(&place.pod.namespace);
        for _ in 0..MAX_TURNS {
            let anchor = raw.0.anchors.find(&place.id).await?.filter(|anchor| place.is_of(anchor));
            let anchor = anchor.ok_or_else(|| anchor::vanished(&place.id))?;
            if anchor.bound || raw.0.anchors.record_bound(&anchor).await? {
                return Ok(());
            }
        }
        Err(contended(&place.id))
    }

    /// Brings the anchor to a Pod that runs, and takes back what it made if it can't.
    async fn finish(
        &self,
        anchor: Anchor,
        mut rollback: Rollback,
        on_lost: OnLost,
    ) -> Result<(Place, Rollback)> {
        match Box::pin(self.settle(anchor, &mut rollback, on_lost)).await {
            Ok(place) => Ok((place, rollback)),
            Err(error) => {
                rollback.run().await;
                Err(error)
            }
        }
    }

    async fn settle(&self, mut anchor: Anchor, rollback: &mut Rollback, on_lost: OnLost) -> Result<Place> {
        for _ in 0..MAX_TURNS {
            if let Some(place) = self.turn(&anchor, rollback, on_lost).await? {
                let pod = self.wait_running(&place).await?;
                let sealed = place.bound || on_lost == OnLost::Error;
                if sealed || self.0.seeds.confirm(&pod).await {
                    return Ok(place);
                }
                self.start_over(&place).await?;
            }
            let id = &anchor.id;
            anchor = self.0.anchors.find(id).await?.ok_or_else(|| anchor::vanished(id))?;
        }
        Err(contended(&anchor.id))
    }

    /// Gives up a Pod that hides what its image has, unless somebody uses it already.
    async fn start_over(&self, place: &Place) -> Result<()> {
        let anchor = self.0.anchors.find(&place.id).await?.filter(|anchor| anchor.uid == place.claim);
        let unused = anchor.filter(|anchor| anchor.generation == place.generation && !anchor.bound);
        if let Some(anchor) = unused
            && self.0.anchors.advance(&anchor).await?
        {
            self.discard(&place.pod.name, &place.pod_uid).await?;
        }
        Ok(())
    }

    /// Deletes a Pod that another one takes the place of.
    async fn discard(&self, name: &str, uid: &str) -> Result<()> {
        api::delete(&self.0.pods, name, uid).await?;
        if self.config().namespace_per_sandbox {
            // The quota has room for one Pod.
            api::wait_gone(&self.0.pods, name, uid).await?;
        }
        Ok(())
    }

    /// The place of this anchor, or none if the anchor has to be read again.
    async fn turn(&self, anchor: &Anchor, rollback: &mut Rollback, on_lost: OnLost) -> Result<Option<Place>> {
        let (name, namespace) = (anchor.pod_name(), &self.config().namespace);
        let pod = match (&anchor.pod_uid, on_lost) {
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
                return Err(Error::new(ErrorKind::NotFound, message, "Create it again with get_or_create."));
            }
            if pod.as_ref().is_some_and(|pod| owned(pod, anchor)) {
                self.discard(&name, &pod_uid).await?;
            }
            self.0.anchors.advance(anchor).await?;
            return Ok(None);
        }
        if anchor.pod_uid.is_none() && !self.0.anchors.record_pod(anchor, &pod_uid).await? {
            return Ok(None);
        }
        Ok(Some(Place {
            id: anchor.id.clone(),
            claim: anchor.uid.clone(),
            generation: anchor.generation,
            pod: PodRef::new(namespace, name),
            pod_uid,
            bound: anchor.bound,
        }))
    }

    /// The Pod of this generation, made if it isn't there; none if the name is taken by a Pod that isn't ours.
    async fn ensure_pod(&self, anchor: &Anchor, rollback: &mut Rollback) -> Result<Option<Pod>> {
        let name = anchor.pod_name();
        if let Some(pod) = find(&self.0.pods, &name).await? {
            return Ok(Some(pod).filter(|pod| owned(pod, anchor)));
        }
        let guest = self.guest().await?;
        guest.ensure(&Api::namespaced(self.0.client.clone(), &self.config().namespace)).await?;
        if self.config().block_network {
            network::ensure(&Api::namespaced(self.0.client.clone(), &self.config().namespace)).await?;
        }
        let names: Vec<_> = guest.names().map(str::to_owned).collect();
        let mut spec = pod::spec(self.config(), &names)?;
        self.0.seeds.plan(&mut spec).await?;
        let pod = pod::manifest(self.config(), anchor, spec)?;
        match within(self.0.pods.create(&PostParams::default(), &pod)).await {
            Ok(created) => {
                rollback.pod_made(anchor, &created);
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
        let mut watch = Watch::new(&self.0.pods, name);
        let appearing = async {
            loop {
                if let Some(pod) = watch.next().await? {
                    return Ok(Some(pod).filter(|pod| owned(pod, anchor)));
                }
            }
        };
        timeout(RIVAL_LIMIT, appearing).await.unwrap_or(Ok(None))
    }

    async fn wait_running(&self, place: &Place) -> Result<Pod> {
        let awaited = Awaited {
            pods: &self.0.pods,
            namespace: &place.pod.namespace,
            name: &place.pod.name,
            uid: &place.pod_uid,
            limit: Duration::from_secs(self.config().startup_timeout_seconds),
            node_grace: Duration::from_secs(self.config().unschedulable_grace_seconds),
        };
        awaited.running().await
    }

    /// The guest, packed once.
    async fn guest(&self) -> Result<&GuestMaps> {
        let pack = || async {
            let (arch, package_dir) = (self.config().arch.clone(), self.config().package_dir.clone());
            let packing = tokio::task::spawn_blocking(move || {
                GuestMaps::pack(&guest_binaries::find(&arch, package_dir.as_deref())?, &arch)
            });
            packing.await.map_err(interrupted)?
        };
        self.0.guest.get_or_try_init(pack).await
    }

    /// All Pods with this id, of whichever anchor.
    async fn pods_of(&self, id: &SandboxId) -> Result<Vec<Pod>> {
        let wanted = ListParams::default().labels(&format!("{ID_LABEL}={id}"));
        let pods = within(self.0.pods.list(&wanted)).await;
        pods.map(|pods| pods.items).map_err(|cause| Error::api("list Pods", &cause))
    }
}

fn contended(id: &SandboxId) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("Sandbox '{id}' is changed by others again and again."),
        "See who else uses this id, and try again.",
    )
}

/// Whether the Pod goes when this anchor is deleted, or is going already.
fn goes_with(pod: &Pod, anchor: Option<&Anchor>) -> bool {
    pod.metadata.deletion_timestamp.is_some() || anchor.is_some_and(|anchor| owned(pod, anchor))
}

fn owned(pod: &Pod, anchor: &Anchor) -> bool {
    pod.owner_references().iter().any(|owner| owner.uid == anchor.uid)
}

/// An object, written as the JSON that the API has.
fn object<T: DeserializeOwned>(json: serde_json::Value) -> Result<T> {
    serde_json::from_value(json).map_err(unwritable)
}

/// A task of ours panicked, or its runtime was shut down.
#[expect(clippy::needless_pass_by_value, reason = "it is made for map_err")]
fn interrupted(cause: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Internal, format!("Making a sandbox was interrupted: {cause}."), "Report this.")
}

#[expect(clippy::needless_pass_by_value, reason = "it is made for map_err")]
fn unwritable(cause: serde_json::Error) -> Error {
    Error::new(
        ErrorKind::Internal,
        format!("Can't write an object for the cluster: {cause}."),
        "Report this.",
    )
}
