//! Deletion of warm pools that no process refills.

use std::time::{Duration, SystemTime};

use sandpod_kube::k8s_openapi::api::coordination::v1::Lease;
use sandpod_kube::kube::api::ListParams;
use sandpod_kube::kube::{Api, ResourceExt};

use super::super::Raw;
use super::cluster::{delete_read, not_taken};
use super::leadership;
use super::plan::{PoolPod, State};
use super::pods::{self, POOL_LABEL};
use crate::backend::kubernetes::MAX_TURNS;
use crate::backend::kubernetes::anchor::MANAGED_BY;
use crate::backend::kubernetes::api::{find, within};
use crate::{Error, Result, SandboxId};

/// The time since the last renewal of its Lease after which a pool is abandoned. A restart of its processes takes
/// less.
const ABANDONED: Duration = Duration::from_secs(600);
/// The number of pools that one request reads.
const PAGE: u32 = 100;

impl Raw {
    /// Deletes pools whose Lease was not renewed for `max_idle`, or ten minutes, and returns the Pods that went with
    /// them.
    pub(in super::super) async fn remove_pools(&self, max_idle: Option<Duration>) -> Result<Vec<SandboxId>> {
        let leases: Api<Lease> = Api::namespaced(self.0.client.clone(), &self.config().namespace);
        let selector = format!("{}={},{POOL_LABEL}", MANAGED_BY.0, MANAGED_BY.1);
        let mut query = ListParams::default().labels(&selector).limit(PAGE);
        let mut removed = Vec::new();
        loop {
            let page =
                within(leases.list(&query)).await.map_err(|cause| Error::api("list Leases", &cause))?;
            for lease in page.items.iter().filter(|lease| is_abandoned(lease, max_idle, SystemTime::now())) {
                removed.extend(self.remove_pool(&leases, lease).await?);
            }
            match page.metadata.continue_.filter(|cursor| !cursor.is_empty()) {
                None => return Ok(removed),
                cursor => query.continue_token = cursor,
            }
        }
    }

    async fn remove_pool(&self, leases: &Api<Lease>, lease: &Lease) -> Result<Vec<SandboxId>> {
        let (name, uid) = (lease.name_any(), lease.uid().unwrap_or_default());
        let pods = self.pods(&not_taken(&name)).await?;
        if !delete_read(leases, &name, &uid, &lease.resource_version().unwrap_or_default()).await? {
            return Ok(Vec::new()); // A process has renewed or deleted the Lease.
        }
        let mut removed = Vec::new();
        let own = pods.iter().filter(|pod| pods::is_from_lease(pod, &name, Some(&uid)));
        for pod in own.filter_map(pods::read).filter(|pod| pod.state.is_waiting()) {
            if self.remove_waiting(&pod).await? {
                removed.push(pod.name.parse()?);
            }
        }
        Ok(removed)
    }

    /// Deletes a Pod of a deleted pool. Returns false if the Pod was taken. Garbage collection also deletes it, but
    /// later.
    async fn remove_waiting(&self, pod: &PoolPod) -> Result<bool> {
        for _ in 0..MAX_TURNS {
            let found = find(&self.0.pods, &pod.name).await?.as_ref().and_then(pods::read);
            match found.filter(|found| found.uid == pod.uid) {
                None | Some(PoolPod { state: State::Terminating, .. }) => return Ok(true),
                Some(PoolPod { state: State::Active, .. }) => return Ok(false),
                Some(found) => {
                    if delete_read(&self.0.pods, &found.name, &found.uid, &found.version).await? {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }
}

fn is_abandoned(lease: &Lease, max_idle: Option<Duration>, now: SystemTime) -> bool {
    let spec = lease.spec.as_ref();
    let renewed = spec.and_then(|spec| spec.renew_time.as_ref()).map(|renewed| SystemTime::from(renewed.0));
    let idle = renewed.and_then(|renewed| now.duration_since(renewed).ok()).unwrap_or_default();
    let is_held = spec.is_some_and(|spec| spec.holder_identity.is_some());
    let until_lost = if is_held { leadership::DURATION } else { Duration::ZERO };
    idle >= max_idle.unwrap_or(ABANDONED).max(until_lost)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pool_is_abandoned_if_its_lease_was_not_renewed() {
        let now: SystemTime =
            "2026-01-01T00:10:00Z".parse::<sandpod_kube::k8s_openapi::jiff::Timestamp>().unwrap().into();
        let abandoned = |holder: Option<&str>, renewed: &str, max_idle: Option<u64>| {
            let spec = json!({ "holderIdentity": holder, "renewTime": renewed });
            let lease = serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap();
            is_abandoned(&lease, max_idle.map(Duration::from_secs), now)
        };
        assert!(abandoned(Some("a"), "2026-01-01T00:00:00.000000Z", None));
        assert!(!abandoned(Some("a"), "2026-01-01T00:00:01.000000Z", None));
        assert!(!abandoned(None, "2026-01-01T00:00:01.000000Z", None));
        assert!(abandoned(None, "2026-01-01T00:09:59.000000Z", Some(0)), "the Lease was released");
        assert!(!abandoned(Some("a"), "2026-01-01T00:09:50.000000Z", Some(0)), "it has a leader");
        assert!(
            abandoned(Some("a"), "2026-01-01T00:09:40.000000Z", Some(0)),
            "the leader did not renew it in time"
        );
    }
}
