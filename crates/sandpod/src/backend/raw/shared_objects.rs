//! Deletes the objects that all sandboxes of a namespace share: the guest's `ConfigMaps`, the cached contents of
//! images, and the deny-all policy.

use futures::future::try_join_all;
use sandpod_kube::k8s_openapi::api::coordination::v1::Lease;
use sandpod_kube::k8s_openapi::api::core::v1::{ConfigMap, Pod};
use sandpod_kube::k8s_openapi::api::networking::v1::NetworkPolicy;
use sandpod_kube::kube::api::ListParams;
use sandpod_kube::kube::{Api, ResourceExt};

use super::pool::POOL_LABEL;
use super::{Raw, network};
use crate::backend::kubernetes::anchor::{ID_LABEL, MANAGED_BY};
use crate::backend::kubernetes::api::{self, Object, within};
use crate::{Error, ErrorKind, Result};

/// The prefixes of the names of the `ConfigMaps`.
const MAPS: [&str; 2] = ["sandpod-guest-", "sandpod-image-"];

impl Raw {
    /// Deletes them and returns their names, as `kind/name`. Deletes nothing while there is a sandbox, or a Pod of one.
    pub(super) async fn delete_unused_shared_objects(&self) -> Result<Vec<String>> {
        if let Some(user) = self.user().await? {
            return Err(user.refusal(&self.config().namespace));
        }
        self.wait_for_last_pods().await?;
        let (client, namespace) = (self.0.client.clone(), &self.config().namespace);
        let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), namespace);
        let maps: Api<ConfigMap> = Api::namespaced(client, namespace);
        let mut removed = remove(&policies, |name| name == network::NAME).await?;
        removed.extend(remove(&maps, |name| MAPS.iter().any(|prefix| name.starts_with(prefix))).await?);
        // A creation that began meanwhile may rely on what it saw before. No Pod may run without its policy.
        if self.user().await?.is_some() {
            network::ensure(&policies).await?;
            let guest = self.guest().await?;
            guest.forget();
            guest.ensure(&maps).await?;
        }
        Ok(removed)
    }

    /// Returns what uses the objects: a Lease of ours, or a Pod that waits for one.
    async fn user(&self) -> Result<Option<User>> {
        let leases: Api<Lease> = Api::namespaced(self.0.client.clone(), &self.config().namespace);
        let leases = ours(&leases).await?;
        if !leases.is_empty() {
            let pools = leases.iter().all(|lease| lease.labels().contains_key(POOL_LABEL));
            return Ok(Some(if pools { User::Pool } else { User::Sandbox }));
        }
        let waits =
            |pod: &Pod| pod.owner_references().is_empty() && pod.metadata.deletion_timestamp.is_none();
        Ok(ours(&self.0.pods).await?.iter().any(waits).then_some(User::Sandbox))
    }

    /// Waits until the Pods of deleted sandboxes are gone: a running Pod needs its policy.
    async fn wait_for_last_pods(&self) -> Result<()> {
        let pods = self.pods(ID_LABEL).await?;
        let pods: Vec<_> = pods.iter().filter_map(|pod| Some((pod.name_any(), pod.uid()?))).collect();
        try_join_all(pods.iter().map(|(name, uid)| api::wait_gone(&self.0.pod_watch, name, uid))).await?;
        Ok(())
    }
}

/// What uses the shared objects.
enum User {
    Sandbox,
    /// A warm pool, and no sandbox.
    Pool,
}

impl User {
    fn refusal(&self, namespace: &str) -> Error {
        let (what, next) = match self {
            Self::Sandbox => ("there are sandboxes", "Delete them first; list shows them."),
            Self::Pool => (
                "there is a warm pool",
                "End the processes that keep it; a cleanup deletes it when its Lease was not renewed for the idle time \
                 to live, or for ten minutes.",
            ),
        };
        Error::new(ErrorKind::AlreadyExists, format!("Nothing was removed: {what} in {namespace}."), next)
    }
}

/// Returns all objects of a kind that sandpod created.
async fn ours<K: Object>(api: &Api<K>) -> Result<Vec<K>> {
    let ours = ListParams::default().labels(&format!("{}={}", MANAGED_BY.0, MANAGED_BY.1));
    let found = within(api.list(&ours)).await;
    let found = found.map_err(|cause| Error::api(&format!("list objects of kind {}", K::kind(&())), &cause));
    found.map(|found| found.items)
}

/// Deletes those of our objects whose names match.
async fn remove<K: Object>(api: &Api<K>, is_meant: impl Fn(&str) -> bool) -> Result<Vec<String>> {
    let mut removed = Vec::new();
    for object in ours(api).await?.into_iter().filter(|object| is_meant(&object.name_any())) {
        let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
        api::delete(api, &name, &uid).await?;
        removed.push(format!("{}/{name}", K::kind(&()).to_lowercase()));
    }
    Ok(removed)
}
