//! The sandboxes that can be reached, by name.
//!
//! The only source of addresses: [`watch`](crate::watch) fills it from the API server, and no header changes it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::ResourceExt as _;
use tokio_util::sync::CancellationToken;

use crate::target::is_pod_address;

const SANDBOX_GROUP: &str = "agents.x-k8s.io/";
/// On Pods of a warm pool until a claim adopts them.
const UNCLAIMED: &str = "agents.x-k8s.io/warm-pool-sandbox";

/// Where a sandbox is.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// The address of its Pod.
    pub address: IpAddr,
    /// The UID of the `Sandbox`.
    pub uid: String,
    /// Cancelled when the Pod is gone: its connections end then, and not after a timeout of TCP.
    pub gone: CancellationToken,
}

/// Which Pods are known, and whether the knowledge is current.
#[derive(Debug, Default)]
pub struct Registry(RwLock<State>);

#[derive(Debug, Default)]
struct State {
    /// By `namespace/name` of the `Sandbox`.
    endpoints: HashMap<String, Endpoint>,
    is_synced: bool,
    is_current: bool,
}

/// What the registry has about a sandbox.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// It can be reached.
    Found(Endpoint),
    /// It has no ready Pod.
    Missing,
    /// It is not known, and the API server cannot be asked at the moment.
    Unknown,
}

impl Registry {
    /// Looks up a sandbox. A known one is found also while the API server is away.
    pub fn find(&self, namespace: &str, name: &str) -> Lookup {
        let state = self.read();
        match state.endpoints.get(&key(namespace, name)) {
            Some(endpoint) => Lookup::Found(endpoint.clone()),
            None if state.is_current => Lookup::Missing,
            None => Lookup::Unknown,
        }
    }

    /// Whether all Pods have been listed once.
    pub fn is_synced(&self) -> bool {
        self.read().is_synced
    }

    /// The number of sandboxes that can be reached.
    pub fn len(&self) -> usize {
        self.read().endpoints.len()
    }

    /// Whether no sandbox can be reached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a sandbox at an address that the caller vouches for, or replaces it.
    pub fn insert(&self, namespace: &str, name: &str, endpoint: Endpoint) {
        if let Some(before) = self.write().endpoints.insert(key(namespace, name), endpoint) {
            before.gone.cancel();
        }
    }

    /// Records the present state of a Pod.
    pub fn apply(&self, pod: &Pod) {
        let Some((name, uid)) = sandbox_of(pod) else { return };
        let key = key(&pod.namespace().unwrap_or_default(), name);
        let mut state = self.write();
        let Some(address) = address(pod) else {
            // A Pod that is not ready takes no new requests; those in flight go on.
            if is_running(pod) {
                state.endpoints.remove(&key);
            } else {
                end(&mut state, &key, uid);
            }
            return;
        };
        let known = state.endpoints.get(&key);
        if known.is_some_and(|known| known.address == address && known.uid == uid) {
            return;
        }
        let endpoint = Endpoint { address, uid: uid.to_owned(), gone: CancellationToken::new() };
        if let Some(before) = state.endpoints.insert(key, endpoint) {
            before.gone.cancel();
        }
    }

    /// Removes a Pod that was deleted.
    pub fn delete(&self, pod: &Pod) {
        let Some((name, uid)) = sandbox_of(pod) else { return };
        end(&mut self.write(), &key(&pod.namespace().unwrap_or_default(), name), uid);
    }

    /// Replaces everything by a complete list.
    pub fn replace(&self, pods: &[Pod]) {
        let listed: HashMap<String, &str> = pods
            .iter()
            .filter(|pod| address(pod).is_some())
            .filter_map(|pod| {
                sandbox_of(pod).map(|(name, uid)| (key(&pod.namespace().unwrap_or_default(), name), uid))
            })
            .collect();
        self.write().endpoints.retain(|key, endpoint| {
            let stays = listed.get(key) == Some(&endpoint.uid.as_str());
            if !stays {
                endpoint.gone.cancel();
            }
            stays
        });
        for pod in pods {
            self.apply(pod);
        }
        let mut state = self.write();
        (state.is_synced, state.is_current) = (true, true);
    }

    /// Records whether the API server answers.
    pub fn set_current(&self, is_current: bool) {
        let mut state = self.write();
        state.is_current = is_current && state.is_synced;
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// Removes an endpoint, unless it is a newer sandbox's of the same name.
fn end(state: &mut State, key: &str, uid: &str) {
    if state.endpoints.get(key).is_some_and(|known| known.uid == uid)
        && let Some(endpoint) = state.endpoints.remove(key)
    {
        endpoint.gone.cancel();
    }
}

/// The name and the UID of the `Sandbox` that controls a Pod.
fn sandbox_of(pod: &Pod) -> Option<(&str, &str)> {
    let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true))?;
    let is_sandbox = owner.kind == "Sandbox" && owner.api_version.starts_with(SANDBOX_GROUP);
    is_sandbox.then_some((owner.name.as_str(), owner.uid.as_str()))
}

fn is_running(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
}

/// The address of a Pod that takes requests: ready, claimed, with a network of its own.
fn address(pod: &Pod) -> Option<IpAddr> {
    let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let is_ready =
        conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let is_nodes = spec.host_network == Some(true) || status.pod_ip == status.host_ip;
    if !is_ready || !is_running(pod) || is_nodes || pod.labels().contains_key(UNCLAIMED) {
        return None;
    }
    status.pod_ip.as_deref()?.parse().ok().filter(is_pod_address)
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A Pod of the sandbox `box`, with changes.
    pub(crate) fn pod(change: impl FnOnce(&mut Value)) -> Pod {
        let mut pod = json!({
            "metadata": {
                "name": "box", "namespace": "agents",
                "ownerReferences": [{
                    "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "box", "uid": "u1", "controller": true,
                }],
            },
            "spec": { "containers": [] },
            "status": {
                "phase": "Running", "podIP": "10.0.0.7", "hostIP": "192.168.0.1",
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        });
        change(&mut pod);
        serde_json::from_value(pod).expect("a Pod")
    }

    fn found(registry: &Registry) -> Option<Endpoint> {
        match registry.find("agents", "box") {
            Lookup::Found(endpoint) => Some(endpoint),
            Lookup::Missing | Lookup::Unknown => None,
        }
    }

    #[test]
    fn only_ready_claimed_pods_with_a_network_of_their_own_are_reached() {
        type Change = fn(&mut Value);
        let cases: [(&str, Change); 7] = [
            ("not ready", |pod| pod["status"]["conditions"][0]["status"] = json!("False")),
            ("unclaimed", |pod| pod["metadata"]["labels"] = json!({ UNCLAIMED: "hash" })),
            ("host network", |pod| pod["spec"]["hostNetwork"] = json!(true)),
            ("the node's address", |pod| pod["status"]["podIP"] = json!("192.168.0.1")),
            ("a metadata server", |pod| pod["status"]["podIP"] = json!("169.254.169.254")),
            ("being deleted", |pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")),
            ("another owner", |pod| pod["metadata"]["ownerReferences"][0]["kind"] = json!("Job")),
        ];
        for (case, change) in cases {
            let registry = Registry::default();
            registry.apply(&pod(change));
            assert!(found(&registry).is_none(), "{case}");
        }
        let registry = Registry::default();
        registry.apply(&pod(|_| ()));
        assert_eq!(found(&registry).unwrap().address.to_string(), "10.0.0.7");
    }

    #[test]
    fn a_deleted_pod_ends_its_requests_and_an_unready_one_does_not() {
        let registry = Registry::default();
        registry.apply(&pod(|_| ()));
        let endpoint = found(&registry).unwrap();
        registry.apply(&pod(|pod| pod["status"]["conditions"][0]["status"] = json!("False")));
        assert!(found(&registry).is_none() && !endpoint.gone.is_cancelled());

        registry.apply(&pod(|_| ()));
        let endpoint = found(&registry).unwrap();
        registry.delete(&pod(|_| ()));
        assert!(found(&registry).is_none() && endpoint.gone.is_cancelled());
    }

    #[test]
    fn a_late_delete_of_an_old_sandbox_keeps_the_new_one() {
        let registry = Registry::default();
        registry.apply(&pod(|pod| pod["metadata"]["ownerReferences"][0]["uid"] = json!("u2")));
        registry.delete(&pod(|_| ()));
        assert_eq!(found(&registry).unwrap().uid, "u2");
    }

    #[test]
    fn an_unknown_sandbox_is_missing_only_while_the_watch_is_current() {
        let registry = Registry::default();
        assert!(matches!(registry.find("agents", "box"), Lookup::Unknown));
        registry.replace(&[pod(|_| ())]);
        assert!(matches!(registry.find("agents", "other"), Lookup::Missing));
        registry.set_current(false);
        assert!(matches!(registry.find("agents", "other"), Lookup::Unknown));
        assert!(found(&registry).is_some(), "known sandboxes stay reachable");
    }

    #[test]
    fn a_complete_list_removes_what_it_lacks() {
        let registry = Registry::default();
        registry.replace(&[pod(|_| ())]);
        let endpoint = found(&registry).unwrap();
        registry.replace(&[]);
        assert!(registry.is_empty() && endpoint.gone.is_cancelled());
    }
}
