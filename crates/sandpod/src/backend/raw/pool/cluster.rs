//! The store of a pool on the cluster.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use sandpod_client::{Connection, Options};
use sandpod_kube::exec::PodRef;
use sandpod_kube::k8s_openapi::api::coordination::v1::Lease;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::k8s_openapi::jiff::Timestamp;
use sandpod_kube::kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use sandpod_kube::kube::{Api, ResourceExt};
use sandpod_kube::watch::SharedWatch;
use serde_json::{Value, json};

use super::super::anchor::SPEC_HASH;
use super::super::{PodDialer, Raw, pod};
use super::leadership;
use super::plan::{PoolPod, State};
use super::pods::{self, ACTIVE, POOL_LABEL, STATUS_LABEL, WARM};
use super::store::{PoolLease, Store};
use crate::backend::kubernetes::anchor::{MANAGED_BY, micros};
use crate::backend::kubernetes::api::{self, Object, find, is, within};
use crate::backend::kubernetes::startup::Awaited;
use crate::backend::kubernetes::{MAX_TURNS, object};
use crate::{Error, ErrorKind, Result};

/// How many Pods are counted with one request.
const PAGE: u32 = 500;
/// The length of a Pod's random suffix. Its letters form no words.
const NAME_LENGTH: usize = 8;
const NAME_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The pool of this name.
pub(super) struct ClusterStore {
    raw: Raw,
    pub(super) name: String,
    /// The annotation of all its Pods.
    spec_hash: String,
    leases: Api<Lease>,
    lease_watch: SharedWatch<Lease>,
    pod_watch: SharedWatch<Pod>,
}

impl Store for ClusterStore {
    type Prepared = Pod;

    async fn lease(&self) -> Result<Option<PoolLease>> {
        let lease = find(&self.leases, &self.name).await?;
        Ok(lease.filter(|lease| lease.metadata.deletion_timestamp.is_none()).as_ref().and_then(read))
    }

    async fn write_lease(&self, seen: Option<&PoolLease>, holder: Option<&str>) -> Result<Option<PoolLease>> {
        let now = micros(Timestamp::now());
        let mut spec = json!({
            "holderIdentity": holder,
            "leaseDurationSeconds": leadership::DURATION.as_secs(),
            "renewTime": now,
        });
        if seen.is_none_or(|lease| lease.holder.as_deref() != holder) {
            spec["acquireTime"] = json!(now);
        }
        let written = match seen {
            None => {
                let labels = json!({ MANAGED_BY.0: MANAGED_BY.1, POOL_LABEL: self.name });
                let lease: Lease =
                    object(json!({ "metadata": { "name": self.name, "labels": labels }, "spec": spec }))?;
                within(self.leases.create(&PostParams::default(), &lease)).await
            }
            Some(seen) => {
                let metadata = json!({ "uid": seen.uid, "resourceVersion": seen.version });
                let patch = json!({ "metadata": metadata, "spec": spec });
                within(self.leases.patch(&self.name, &PatchParams::default(), &Patch::Merge(&patch))).await
            }
        };
        match written {
            Ok(lease) => Ok(read(&lease)),
            Err(cause) if is(&cause, 409) || is(&cause, 404) => Ok(None),
            Err(cause) => Err(Error::api(&format!("write Lease '{}'", self.name), &cause)),
        }
    }

    async fn pods(&self) -> Result<Vec<PoolPod>> {
        let pods = self.raw.pods(&not_taken(&self.name)).await?;
        Ok(pods.iter().filter(|pod| self.has_made(pod)).filter_map(pods::read).collect())
    }

    fn new_name(&self) -> String {
        let letters = std::iter::repeat_with(|| fastrand::choice(NAME_LETTERS)).flatten();
        let end: String = letters.take(NAME_LENGTH).map(|&letter| char::from(letter)).collect();
        format!("{}-{end}", self.name)
    }

    async fn prepare(&self, name: &str, lease: &PoolLease) -> Result<Pod> {
        let labels = pods::labels(&self.name, name);
        let owner = pod::owner(&self.name, &lease.uid);
        let mut pod = self.raw.planned_pod(name.to_owned(), labels, owner).await?;
        pod.annotations_mut().insert(SPEC_HASH.to_owned(), self.spec_hash.clone());
        Ok(pod)
    }

    async fn make(&self, pod: Pod) -> Result<()> {
        let name = pod.name_any();
        match within(self.raw.0.pods.create(&PostParams::default(), &pod)).await {
            Ok(made) => match pod::check_whole(&pod, &made) {
                Ok(()) => Ok(()),
                Err(error) => {
                    api::delete(&self.raw.0.pods, &name, &made.uid().unwrap_or_default()).await?;
                    Err(error)
                }
            },
            Err(cause) if is(&cause, 409) => Ok(()),
            Err(cause) => Err(Error::api(&format!("create Pod '{name}'"), &cause)),
        }
    }

    async fn start(&self, name: &str) -> Result<()> {
        let Some(made) = find(&self.raw.0.pods, name).await?.as_ref().and_then(pods::read) else {
            return Ok(()); // It is gone, and the next look sees that.
        };
        if made.state != State::Starting {
            return Ok(());
        }
        match self.check(&made).await {
            Ok(true) => self.let_be_taken(&made).await,
            // The next one copies what its image has, or gets its guest by another delivery.
            Ok(false) => self.discard_unfinished(&made).await,
            Err(error) => {
                self.discard_unfinished(&made).await?;
                Err(error)
            }
        }
    }

    async fn discard(&self, pod: &PoolPod) -> Result<()> {
        delete_read(&self.raw.0.pods, &pod.name, &pod.uid, &pod.version).await.map(drop)
    }

    fn lease_changes(&self) -> BoxStream<'static, ()> {
        changes(&self.lease_watch)
    }

    fn pod_changes(&self) -> BoxStream<'static, ()> {
        changes(&self.pod_watch)
    }
}

impl ClusterStore {
    pub(super) fn new(raw: Raw, name: String, spec_hash: String) -> Self {
        let leases: Api<Lease> = Api::namespaced(raw.0.client.clone(), &raw.config().namespace);
        let lease_watch = SharedWatch::new(leases.clone(), format!("{POOL_LABEL}={name}"));
        let pod_watch = SharedWatch::new(raw.0.pods.clone(), not_taken(&name));
        Self { raw, name, spec_hash, leases, lease_watch, pod_watch }
    }

    /// Whether the Pod was made for this pool. Labels alone do not prove that.
    pub(super) fn has_made(&self, pod: &Pod) -> bool {
        pods::is_from_lease(pod, &self.name, None)
            && pod.annotations().get(SPEC_HASH) == Some(&self.spec_hash)
    }

    /// Returns the number of Pods that sandboxes have taken from the pool.
    pub(super) async fn count_active(&self) -> Result<usize> {
        let selector = format!("{POOL_LABEL}={},{STATUS_LABEL}={ACTIVE}", self.name);
        let mut query = ListParams::default().labels(&selector).limit(PAGE);
        let mut count = 0;
        loop {
            let page = within(self.raw.0.pods.list_metadata(&query)).await;
            let page = page.map_err(|cause| Error::api("list Pods", &cause))?;
            count += page.items.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).count();
            match page.metadata.continue_.filter(|cursor| !cursor.is_empty()) {
                None => return Ok(count),
                cursor => query.continue_token = cursor,
            }
        }
    }

    /// Waits until the Pod runs and its guest answers. Returns false if it hides files of its image, or the guest's
    /// image could not deliver the guest.
    async fn check(&self, made: &PoolPod) -> Result<bool> {
        let config = self.raw.config();
        let awaited = Awaited {
            pods: &self.raw.0.pods,
            watch: &self.raw.0.pod_watch,
            namespace: &config.namespace,
            name: &made.name,
            uid: &made.uid,
            limit: Duration::from_secs(config.startup_timeout_seconds),
            node_grace: Duration::from_secs(config.unschedulable_grace_seconds),
        };
        let pod = match awaited.running().await {
            Err(error) if self.raw.guest_image_failed(&made.name, &error).await? => return Ok(false),
            running => running?,
        };
        if !self.raw.0.image_contents.confirm(&pod).await {
            return Ok(false);
        }
        let dialer = PodDialer {
            raw: self.raw.clone(),
            pod: PodRef::new(&config.namespace, &made.name),
            uid: made.uid.clone(),
            id: made.name.parse()?,
        };
        let greeting = Connection::new(Box::new(dialer), Options::default()).greeting().await;
        greeting.map(|_| true).map_err(|cause| {
            let message = format!("Pod '{}' runs, but its guest does not answer: {cause}.", made.name);
            let next = format!("See what it says: kubectl logs -n {} {}", config.namespace, made.name);
            Error::new(ErrorKind::StartFailed, message, next)
        })
    }

    async fn let_be_taken(&self, made: &PoolPod) -> Result<()> {
        for _ in 0..MAX_TURNS {
            let Some(pod) = self.unfinished(made).await? else { return Ok(()) };
            let labels = pods::status(self.raw.config().naming, WARM);
            if change(&self.raw.0.pods, &pod, json!({ "labels": labels })).await?.is_some() {
                return Ok(());
            }
        }
        Ok(()) // It is started once more.
    }

    async fn discard_unfinished(&self, made: &PoolPod) -> Result<()> {
        for _ in 0..MAX_TURNS {
            let Some(pod) = self.unfinished(made).await? else { return Ok(()) };
            if delete_read(&self.raw.0.pods, &pod.name, &pod.uid, &pod.version).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns the Pod as it is now, unless another process has finished it.
    async fn unfinished(&self, made: &PoolPod) -> Result<Option<PoolPod>> {
        let pod = find(&self.raw.0.pods, &made.name).await?.as_ref().and_then(pods::read);
        Ok(pod.filter(|pod| pod.uid == made.uid && matches!(pod.state, State::Starting | State::Dead)))
    }
}

/// Selects the Pods of a pool that are not taken. The list is never longer than the pool, however many are taken.
pub(super) fn not_taken(pool: &str) -> String {
    format!("{POOL_LABEL}={pool},{STATUS_LABEL}!={ACTIVE}")
}

/// Patches a Pod's metadata. Returns none if it has changed since it was read.
pub(super) async fn change(pods: &Api<Pod>, read: &PoolPod, mut metadata: Value) -> Result<Option<Pod>> {
    metadata["uid"] = read.uid.as_str().into();
    metadata["resourceVersion"] = read.version.as_str().into();
    let patch = json!({ "metadata": metadata });
    match within(pods.patch(&read.name, &PatchParams::default(), &Patch::Merge(&patch))).await {
        Ok(pod) => Ok(Some(pod)),
        Err(cause) if is(&cause, 409) || is(&cause, 404) => Ok(None),
        Err(cause) => Err(Error::api(&format!("update Pod '{}'", read.name), &cause)),
    }
}

/// Deletes an object as it was read. Returns false if it has changed since, or is gone.
pub(super) async fn delete_read<K: Object>(
    api: &Api<K>,
    name: &str,
    uid: &str,
    version: &str,
) -> Result<bool> {
    let exactly = Preconditions { uid: Some(uid.to_owned()), resource_version: Some(version.to_owned()) };
    let how = DeleteParams::background().grace_period(1).preconditions(exactly);
    match within(api.delete(name, &how)).await {
        Ok(_) => Ok(true),
        Err(cause) if is(&cause, 404) || is(&cause, 409) => Ok(false),
        Err(cause) => Err(Error::api(&format!("delete {} '{name}'", K::kind(&())), &cause)),
    }
}

fn read(lease: &Lease) -> Option<PoolLease> {
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
    Some(PoolLease { uid: lease.uid()?, version: lease.resource_version()?, holder })
}

fn changes<K: Object>(watch: &SharedWatch<K>) -> BoxStream<'static, ()> {
    let changes = watch.changes();
    stream::unfold(changes, |mut changes| async {
        changes.next().await;
        Some(((), changes))
    })
    .boxed()
}
