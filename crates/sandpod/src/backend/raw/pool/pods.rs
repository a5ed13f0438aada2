//! The Pods of a pool on the cluster.

use std::collections::BTreeMap;
use std::time::SystemTime;

use sandpod_kube::k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use sandpod_kube::kube::ResourceExt;

use super::super::{POOLS, Raw};
use super::plan::{PoolPod, State};
use crate::backend::kubernetes::anchor::{self, ID_LABEL, MANAGED_BY, OURS};
use crate::backend::{Facts, GuestDelivery, Page, PlaceState, Query, Record};
use crate::{Naming, Result};

/// The pool that a Pod is from, also when it is taken.
pub(in super::super) const POOL_LABEL: &str = "sandpod.dev/pool";
/// The state of a Pod of a pool.
pub(in super::super) const STATUS_LABEL: &str = "sandpod.dev/pool-status";
/// It starts.
const PENDING: &str = "pending";
/// Its guest has answered, and it is not taken.
pub(super) const WARM: &str = "warm";
/// A sandbox has taken it.
pub(super) const ACTIVE: &str = "active";

/// Returns the labels of a new Pod. Until it is taken, its id is its own name.
pub(super) fn labels(pool: &str, name: &str) -> BTreeMap<String, String> {
    [(MANAGED_BY.0, MANAGED_BY.1), (ID_LABEL, name), (POOL_LABEL, pool), (STATUS_LABEL, PENDING)]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

/// Returns the labels that record the state.
pub(super) fn status(naming: Naming, status: &str) -> BTreeMap<String, String> {
    let names = naming.alias(STATUS_LABEL).into_iter().chain([STATUS_LABEL.to_owned()]);
    names.map(|name| (name, status.to_owned())).collect()
}

/// Parses the Pod, if it is one of a pool.
pub(super) fn read(pod: &Pod) -> Option<PoolPod> {
    Some(PoolPod {
        name: pod.name_any(),
        uid: pod.uid()?,
        version: pod.resource_version()?,
        state: state(pod)?,
    })
}

/// Whether the Lease `lease`, with this UID if one is given, owns the Pod.
pub(super) fn is_from_lease(pod: &Pod, lease: &str, uid: Option<&str>) -> bool {
    pod.owner_references()
        .iter()
        .any(|owner| owner.kind == "Lease" && owner.name == lease && uid.is_none_or(|uid| owner.uid == uid))
}

fn state(pod: &Pod) -> Option<State> {
    let label = pod.labels().get(STATUS_LABEL)?;
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let mut containers = status.into_iter().flat_map(|status| status.container_statuses.iter().flatten());
    Some(match label.as_str() {
        _ if pod.metadata.deletion_timestamp.is_some() => State::Terminating,
        ACTIVE => State::Active,
        _ if matches!(phase, Some("Failed" | "Succeeded")) => State::Dead,
        WARM if containers.any(crashes) => State::Dead,
        WARM => State::Warm {
            ready: conditions
                .iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True"),
        },
        _ => State::Starting,
    })
}

/// Returns what is recorded of a waiting Pod.
fn record(pod: &Pod) -> Option<Record> {
    let waiting = read(pod).filter(|pod| matches!(pod.state, State::Warm { .. }))?;
    Some(Record {
        id: waiting.name.parse().ok()?,
        uid: waiting.uid,
        namespace: pod.namespace().unwrap_or_default(),
        labels: BTreeMap::new(),
        annotations: pod.annotations().clone(),
        generation: 0,
        made_at: pod.creation_timestamp().map(|created| SystemTime::from(created.0)),
        created_at: None,
        last_activity: None,
        ttl: None,
        idle_ttl: None,
        place_state: PlaceState::Warm,
        guest: GuestDelivery::of(pod),
        facts: Facts::default(),
        version: waiting.version,
    })
}

impl Raw {
    /// Returns one page of the waiting Pods of all pools of the namespace.
    pub(in super::super) async fn page_of_pools(&self, query: &Query) -> Result<Page> {
        let warm = format!("{OURS},{POOL_LABEL},{STATUS_LABEL}={WARM}");
        let (pods, cursor) = anchor::page(&self.0.pods, &self.config().label_prefix, query, &warm).await?;
        let cursor = cursor.map(|cursor| format!("{POOLS}{cursor}"));
        Ok(Page { records: pods.iter().filter_map(record).collect(), cursor })
    }
}

/// Whether the container crashes repeatedly.
fn crashes(container: &ContainerStatus) -> bool {
    let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
    waiting.and_then(|waiting| waiting.reason.as_deref()) == Some("CrashLoopBackOff")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn state_of(label: &str, status: &Value) -> State {
        let pod = json!({
            "metadata": { "name": "p", "uid": "1", "resourceVersion": "2", "labels": { STATUS_LABEL: label } },
            "status": status,
        });
        read(&serde_json::from_value(pod).unwrap()).unwrap().state
    }

    #[test]
    fn only_a_checked_and_ready_pod_can_be_taken() {
        let ready = json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] });
        assert_eq!(state_of("pending", &ready), State::Starting);
        assert_eq!(state_of("warm", &ready), State::Warm { ready: true });
        assert_eq!(state_of("active", &ready), State::Active);
        let unready = json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "False" }] });
        assert_eq!(state_of("warm", &unready), State::Warm { ready: false });
    }

    #[test]
    fn a_pod_that_ended_or_crashes_repeatedly_is_dead() {
        assert_eq!(state_of("pending", &json!({ "phase": "Failed" })), State::Dead);
        assert_eq!(state_of("warm", &json!({ "phase": "Succeeded" })), State::Dead);
        let crashing = json!({ "phase": "Running", "containerStatuses": [{
            "name": "sandbox", "image": "", "imageID": "", "ready": false, "restartCount": 5,
            "state": { "waiting": { "reason": "CrashLoopBackOff" } },
        }] });
        assert_eq!(state_of("warm", &crashing), State::Dead);
        assert_eq!(state_of("active", &crashing), State::Active, "it is its owner's");
    }

    #[test]
    fn a_pod_without_pool_labels_is_in_no_pool() {
        let pod = json!({ "metadata": { "name": "a-1", "uid": "1", "resourceVersion": "2" } });
        assert_eq!(read(&serde_json::from_value(pod).unwrap()), None);
    }
}
