//! Sandboxes as plain Pods.
//!
//! A sandbox is a Lease ([`anchor`]), which owns its Pod ([`pod`]). The name of the Pod contains the generation of the
//! Lease, so a caller that finds a Lease without its Pod can continue, and two that do so end at the same Pod
//! ([`provision`]). The guest is delivered in the first possible way ([`delivery`]) and reached through exec
//! ([`dialer`]).
//!
//! With [`namespace_per_sandbox`] every sandbox has its own namespace. [`pool`] keeps Pods ready, [`image_contents`]
//! copies what an image has in writable directories, [`expiry`] ends sandboxes whose creation was killed, and
//! [`created_objects`] tracks what a call has to roll back.

mod anchor;
mod created_objects;
mod delivery;
mod dialer;
mod expiry;
mod image_contents;
mod namespace_per_sandbox;
mod network;
mod overrides;
mod pod;
mod pod_security;
mod pool;
mod provision;
mod push;
mod shared_objects;
mod strategic_merge;
mod template;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, try_join_all};
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::api::ListParams;
use sandpod_kube::kube::{Api, Client, ResourceExt};
use sandpod_kube::watch::SharedWatch;
use tokio::sync::OnceCell;
use tokio::time::Instant;

pub(crate) use self::anchor::COLD_REASON;
use self::anchor::{Anchor, Anchors};
use self::created_objects::CreatedObjects;
use self::delivery::{Deliveries, GuestSource};
use self::dialer::PodDialer;
use self::expiry::ExpiryJobs;
use self::image_contents::ImageContents;
pub(crate) use self::namespace_per_sandbox::NamespacePerSandbox;
use self::pool::Pool;
use self::provision::Intent;
pub use self::template::RouterDoor;
pub(crate) use self::template::template;
use super::kubernetes::anchor::ID_LABEL;
use super::kubernetes::api::{self, find, within};
use super::kubernetes::guest::GuestMaps;
use super::kubernetes::outage::{Contact, making_limit, outlast, unfinished_lifetime};
use super::kubernetes::{anchor_store, interrupted, object};
use super::{Backend, CreateSpec, OnLost, Page, Place, Provisioned, Query, Record, Setup, slot};
use crate::provider::PoolStatus;
use crate::{Error, RawConfig, Result, SandboxId};

/// The prefix of a cursor of Pods in pools. No cursor of the API server contains a dot.
const POOLS: &str = "pools.";

/// Checks that the Pod of this configuration is valid and no weaker than allowed.
pub(crate) fn check(config: &RawConfig) -> Result<()> {
    pod::spec(config, &GuestSource::default()).map(drop)
}

/// Returns a Pod as sandboxes of this configuration have it, for a dry run.
pub(crate) fn sample(config: &RawConfig) -> Result<Pod> {
    let mut pod = pod::template_metadata(config)?;
    pod["metadata"]["generateName"] = "sandpod-doctor-".into();
    let mut pod: Pod = object(pod)?;
    pod.spec = Some(pod::spec(config, &GuestSource::Maps(vec!["sandpod-guest".to_owned()]))?);
    Ok(pod)
}

/// Returns the names of the `ConfigMaps` that hold the guest of this version.
pub(crate) async fn guest_map_names(arch: &str, package_dir: Option<&Path>) -> Result<Vec<String>> {
    let maps = GuestMaps::load(arch, package_dir).await?;
    Ok(maps.names().map(str::to_owned).collect())
}

/// Creates, finds and deletes sandboxes in one namespace. Clones share their state.
#[derive(Clone)]
pub(crate) struct Raw(Arc<Inner>);

struct Inner {
    client: Client,
    config: RawConfig,
    guest: Arc<OnceCell<GuestMaps>>,
    deliveries: Arc<Deliveries>,
    anchors: Anchors,
    pods: Api<Pod>,
    pod_watch: SharedWatch<Pod>,
    image_contents: Arc<ImageContents>,
    expiry_jobs: ExpiryJobs,
    contact: Arc<Contact>,
    /// Set when the first sandbox is asked for.
    pool: OnceCell<Pool>,
}

impl Backend for Raw {
    fn create<'a>(&'a self, id: &'a SandboxId, wanted: &'a CreateSpec) -> BoxFuture<'a, Result<Provisioned>> {
        self.create_anchor(id, wanted)
            .then(move |made| async move {
                let (anchor, created) = made?;
                self.finish(anchor, created, Intent::Create(wanted.on_lost)).await
            })
            .boxed()
    }

    fn attach<'a>(
        &'a self,
        id: &'a SandboxId,
        on_lost: OnLost,
    ) -> BoxFuture<'a, Result<Option<Provisioned>>> {
        async move {
            let end = Instant::now() + self.startup_limit();
            let found = outlast(self.0.contact.end(end), || self.0.anchors.find(id)).await?;
            self.0.contact.note();
            match found {
                Some(anchor) => {
                    self.finish(anchor, CreatedObjects::new(self), Intent::Attach(on_lost)).await.map(Some)
                }
                None => Ok(None),
            }
        }
        .boxed()
    }

    fn outage_limit(&self) -> Duration {
        self.startup_limit()
    }

    fn record_bound<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<()>> {
        anchor_store::record_bound(&self.0.anchors, place).boxed()
    }

    fn record_reported<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<()>> {
        anchor_store::record_reported(&self.0.anchors, place).boxed()
    }

    fn begin_setup<'a>(&'a self, place: &'a Place, limit: Duration) -> BoxFuture<'a, Result<Setup>> {
        anchor_store::assign_setup(&self.0.anchors, place, limit, self.startup_limit()).boxed()
    }

    fn record_activity<'a>(&'a self, id: &'a SandboxId, uid: &'a str) -> BoxFuture<'a, Result<()>> {
        self.0.anchors.touch(id, uid).boxed()
    }

    fn find<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<Option<Record>>> {
        async move {
            let Some(anchor) = self.0.anchors.find(id).await? else { return Ok(None) };
            let pod = find(&self.0.pods, &anchor.pod_name()).await?;
            Ok(Some(anchor.record(self.config(), pod.as_ref())))
        }
        .boxed()
    }

    fn list<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Page>> {
        self.page(query).boxed()
    }

    fn delete<'a>(&'a self, id: &'a SandboxId, wait: bool) -> BoxFuture<'a, Result<()>> {
        self.delete_all(id, wait).boxed()
    }

    fn delete_unchanged<'a>(&'a self, record: &'a Record) -> BoxFuture<'a, Result<bool>> {
        // Garbage collection deletes the Pod.
        self.0.anchors.delete_unchanged(&record.id, &record.uid, &record.version).boxed()
    }

    fn set_ttl<'a>(&'a self, record: &'a Record, ttl: Duration) -> BoxFuture<'a, Result<bool>> {
        self.0.anchors.set_ttl(record, ttl).boxed()
    }

    fn delete_shared_objects(&self) -> BoxFuture<'_, Result<Vec<String>>> {
        self.delete_unused_shared_objects().boxed()
    }

    fn pool_status(&self) -> BoxFuture<'_, Result<PoolStatus>> {
        self.read_pool_status().boxed()
    }

    fn remove_abandoned_pools(&self, max_idle: Option<Duration>) -> BoxFuture<'_, Result<Vec<SandboxId>>> {
        self.remove_pools(max_idle).boxed()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.close_pool().boxed()
    }
}

impl Raw {
    pub(crate) fn new(client: Client, config: RawConfig) -> Self {
        let image_contents = ImageContents::new(Api::namespaced(client.clone(), &config.namespace));
        let deliveries = Arc::new(Deliveries::new(&config));
        Self::sharing(client, config, Arc::default(), deliveries, (Arc::new(image_contents), Arc::default()))
    }

    fn sharing(
        client: Client,
        config: RawConfig,
        guest: Arc<OnceCell<GuestMaps>>,
        deliveries: Arc<Deliveries>,
        (image_contents, contact): (Arc<ImageContents>, Arc<Contact>),
    ) -> Self {
        let expiry_jobs = ExpiryJobs::new(client.clone(), &config);
        let anchors = Anchors::new(&client, &config);
        let pods = Api::namespaced(client.clone(), &config.namespace);
        // Their other labels depend on the naming.
        let pod_watch = SharedWatch::new(pods.clone(), ID_LABEL);
        Self(Arc::new(Inner {
            client,
            config,
            guest,
            deliveries,
            anchors,
            pods,
            pod_watch,
            image_contents,
            expiry_jobs,
            contact,
            pool: OnceCell::new(),
        }))
    }

    /// Returns the same backend for another namespace. It shares the knowledge about images.
    fn at(&self, namespace: String) -> Self {
        let config = RawConfig { namespace, ..self.config().clone() };
        let Inner { client, guest, deliveries, image_contents, contact, .. } = &*self.0;
        let shared = (image_contents.clone(), contact.clone());
        Self::sharing(client.clone(), config, guest.clone(), deliveries.clone(), shared)
    }

    fn config(&self) -> &RawConfig {
        &self.0.config
    }

    fn startup_limit(&self) -> Duration {
        Duration::from_secs(self.config().startup_timeout_seconds)
    }

    /// Returns the anchor of the sandbox `id`, created if it does not exist, and what the call has created.
    async fn create_anchor(&self, id: &SandboxId, wanted: &CreateSpec) -> Result<(Anchor, CreatedObjects)> {
        let _slot = slot().await?;
        let end = Instant::now() + self.startup_limit();
        let guest = self.guest_source(self.0.deliveries.current().delivery).await?;
        let hash = pod::spec_hash(&pod::spec(self.config(), &guest)?)?;
        let limit = making_limit(self.startup_limit(), self.config().setup_script.is_some());
        let lifetime = unfinished_lifetime(wanted.ttl, limit);
        let ending = || self.0.expiry_jobs.owner(lifetime, limit);
        let owner = outlast(self.0.contact.end(end), ending).await?;
        self.0.contact.note();
        let source = self.source(0).await;
        let (raw, id, wanted) = (self.clone(), id.clone(), wanted.clone());
        // In a task: if the caller is cancelled during the request, the result is dropped and so rolled back.
        let creating = tokio::spawn(async move {
            let (mut created, holder) = (CreatedObjects::new(&raw), SandboxId::random()?.to_string());
            let create = || raw.0.anchors.create(&id, &wanted, (&hash, &source), &holder, owner.as_ref());
            let (anchor, is_new) = match outlast(end, create).await {
                Err(error) if error.is_outage() => {
                    drop(created_objects::unanswered(&raw, &id, &holder));
                    return Err(error);
                }
                made => made?,
            };
            if is_new {
                created.anchor_made(&anchor);
                outlast(end, || raw.make_own_policy(&anchor)).await?;
            }
            Ok::<_, Error>((anchor, created))
        });
        creating.await.map_err(interrupted)?
    }

    /// Creates the policy by which users of another package recognise that a sandbox is isolated.
    async fn make_own_policy(&self, anchor: &Anchor) -> Result<()> {
        let Some((name, label)) = anchor.own_policy().filter(|_| self.config().block_network) else {
            return Ok(());
        };
        let policies = Api::namespaced(self.0.client.clone(), &self.config().namespace);
        let owner = pod::owner(anchor.id.as_str(), &anchor.uid);
        network::make_own(&policies, &name, (label, anchor.id.as_str()), &anchor.own_labels(), owner).await
    }

    /// Returns one page: first sandboxes, then the Pods that wait in pools, which have no user labels.
    async fn page(&self, query: &Query) -> Result<Page> {
        let in_pools = |cursor| Query { cursor, ..query.clone() };
        if let Some(cursor) = query.cursor.as_deref().and_then(|cursor| cursor.strip_prefix(POOLS)) {
            return self.page_of_pools(&in_pools(Some(cursor.to_owned()))).await;
        }
        let mut page = self.page_of_sandboxes(query).await?;
        if page.cursor.is_none() && query.labels.is_empty() {
            let warm = self.page_of_pools(&in_pools(None)).await?;
            page.records.extend(warm.records);
            page.cursor = warm.cursor;
        }
        Ok(page)
    }

    async fn page_of_sandboxes(&self, query: &Query) -> Result<Page> {
        let (anchors, cursor) = self.0.anchors.list(query).await?;
        let ids: Vec<_> = anchors.iter().map(|anchor| anchor.id.as_str()).collect();
        let pods = match &ids[..] {
            [] => Vec::new(),
            ids => self.pods(&format!("{ID_LABEL} in ({})", ids.join(","))).await?,
        };
        let pods: HashMap<_, _> = pods.iter().map(|pod| (pod.name_any(), pod)).collect();
        let config = self.config();
        let records =
            anchors.iter().map(|anchor| anchor.record(config, pods.get(&anchor.pod_name()).copied()));
        Ok(Page { records: records.collect(), cursor })
    }

    async fn delete_all(&self, id: &SandboxId, wait: bool) -> Result<()> {
        let anchor = self.0.anchors.find(id).await?;
        if let Some(anchor) = &anchor {
            self.0.anchors.delete(anchor).await?;
        }
        // Another caller may be creating a new sandbox of this id, whose Pod must stay.
        let pods = self.pods(&format!("{ID_LABEL}={id}")).await?;
        let pods = pods.iter().filter(|pod| is_deleted_with(pod, anchor.as_ref()));
        let pods: Vec<_> = pods.filter_map(|pod| Some((pod.name_any(), pod.uid()?))).collect();
        // Garbage collection would delete them a little later.
        try_join_all(pods.iter().map(|(name, uid)| api::delete(&self.0.pods, name, uid))).await?;
        if wait {
            try_join_all(pods.iter().map(|(name, uid)| api::wait_gone(&self.0.pod_watch, name, uid))).await?;
            if let Some(anchor) = &anchor {
                self.0.anchors.wait_gone(id, &anchor.uid).await?;
            }
        }
        Ok(())
    }

    /// Returns the packed guest.
    async fn guest(&self) -> Result<&GuestMaps> {
        let pack = || async {
            let config = self.config();
            GuestMaps::load(&config.arch, config.package_dir.as_deref()).await
        };
        self.0.guest.get_or_try_init(pack).await
    }

    /// Returns the Pods with these labels.
    async fn pods(&self, selector: &str) -> Result<Vec<Pod>> {
        let pods = within(self.0.pods.list(&ListParams::default().labels(selector))).await;
        pods.map(|pods| pods.items).map_err(|cause| Error::api("list Pods", &cause))
    }
}

/// Whether the Pod goes with this anchor, or is being deleted already.
fn is_deleted_with(pod: &Pod, anchor: Option<&Anchor>) -> bool {
    pod.metadata.deletion_timestamp.is_some() || anchor.is_some_and(|anchor| is_owned_by(pod, anchor))
}

fn is_owned_by(pod: &Pod, anchor: &Anchor) -> bool {
    pod.owner_references().iter().any(|owner| owner.uid == anchor.uid)
}
