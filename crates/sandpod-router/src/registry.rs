//! The sandboxes that can be reached, by name, claim and UID.
//!
//! This is the only source of addresses: [`watch`](crate::watch) fills it from the API server, and no header changes it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::observe::{PodState, SandboxState};
use crate::target::SandboxRef;

/// The Pod of a sandbox.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// The address of the Pod.
    pub address: IpAddr,
    /// The UID of the `Sandbox`.
    pub uid: String,
    /// Cancelled when the Pod is gone: its connections end then, and not after a timeout of TCP.
    pub gone: CancellationToken,
}

/// The known sandboxes, and whether the knowledge is current.
#[derive(Debug)]
pub struct Registry {
    state: RwLock<State>,
    changes: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    endpoints: HashMap<SandboxRef, PodEndpoint>,
    sandboxes: HashMap<SandboxRef, SandboxState>,
    /// The sandbox of each claim; a claim is a reference here, too.
    claims: HashMap<SandboxRef, SandboxRef>,
    uids: HashMap<String, SandboxRef>,
    pods: Source,
    objects: Source,
}

/// An endpoint, and the UID of its Pod: two Pods can have one owner, for example while one replaces the other.
#[derive(Debug)]
struct PodEndpoint {
    pod_uid: String,
    endpoint: Endpoint,
}

impl PodEndpoint {
    fn is_of(&self, pod: &PodState) -> bool {
        self.endpoint.uid == pod.uid && self.pod_uid == pod.pod_uid
    }
}

/// The state of one watch.
#[derive(Clone, Copy, Debug, Default)]
struct Source {
    is_synced: bool,
    is_current: bool,
}

impl Source {
    const SYNCED: Self = Self { is_synced: true, is_current: true };
}

/// The state of a sandbox in the registry.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// It can be reached.
    Found(Endpoint),
    /// It has no Pod until it is resumed.
    Suspended,
    /// Its Pod is not ready yet.
    Starting,
    /// It does not exist.
    Missing,
    /// It is not known, and the API server cannot be asked at the moment.
    Unknown,
}

impl Default for Registry {
    fn default() -> Self {
        Self { state: RwLock::default(), changes: watch::Sender::new(()) }
    }
}

impl Registry {
    /// Looks up a sandbox. A known one is found also while the API server is away.
    pub fn find(&self, sandbox: &SandboxRef) -> Lookup {
        let state = self.read();
        // A Pod that claims to be of another Sandbox than the one with this name is not reached.
        let known = state.sandboxes.get(sandbox);
        let endpoint = state.endpoints.get(sandbox).map(|known| &known.endpoint);
        match (known, endpoint) {
            (Some(known), Some(endpoint)) if known.uid == endpoint.uid => Lookup::Found(endpoint.clone()),
            (Some(known), _) if known.is_suspended => Lookup::Suspended,
            (Some(_), _) => Lookup::Starting,
            _ if state.is_current() => Lookup::Missing,
            _ => Lookup::Unknown,
        }
    }

    /// The sandbox that a claim owns.
    pub fn of_claim(&self, claim: &SandboxRef) -> Option<SandboxRef> {
        self.read().claims.get(claim).cloned()
    }

    /// The sandbox with a UID.
    pub fn of_uid(&self, uid: &str) -> Option<SandboxRef> {
        self.read().uids.get(uid).cloned()
    }

    /// The name of the claim that owns a sandbox.
    pub fn claim_of(&self, sandbox: &SandboxRef) -> Option<String> {
        self.read().sandboxes.get(sandbox)?.claim.clone()
    }

    /// The UID of a sandbox.
    pub(crate) fn uid_of(&self, sandbox: &SandboxRef) -> Option<String> {
        self.read().sandboxes.get(sandbox).map(|known| known.uid.clone())
    }

    /// Whether there is a `Sandbox` of this name.
    pub(crate) fn contains(&self, sandbox: &SandboxRef) -> bool {
        self.read().sandboxes.contains_key(sandbox)
    }

    /// Whether the API server answered the last time that it was asked.
    pub fn is_current(&self) -> bool {
        self.read().is_current()
    }

    /// Whether all sandboxes and Pods have been listed once.
    pub fn is_synced(&self) -> bool {
        let state = self.read();
        state.pods.is_synced && state.objects.is_synced
    }

    /// The number of sandboxes that can be reached.
    pub fn len(&self) -> usize {
        self.read().endpoints.len()
    }

    /// Whether no sandbox can be reached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Notifies of every change from now on.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Adds a sandbox at an address that the caller vouches for, or replaces it. For tests and fuzz targets.
    pub fn insert(&self, sandbox: &SandboxRef, endpoint: Endpoint) {
        let (sandbox, uid) = (sandbox.clone(), endpoint.uid.clone());
        let object = SandboxState { sandbox: sandbox.clone(), uid, claim: None, is_suspended: false };
        self.change(|state| {
            state.add_sandbox(object);
            state.set_endpoint(sandbox, PodEndpoint { pod_uid: String::new(), endpoint });
        });
    }

    /// Records the present state of a Pod.
    pub fn apply_pod(&self, pod: &PodState) {
        self.change(|state| state.apply_pod(pod));
    }

    /// Removes a Pod that was deleted.
    pub fn delete_pod(&self, pod: &PodState) {
        self.change(|state| state.end(pod));
    }

    /// Replaces all Pods by a complete list.
    pub fn replace_pods(&self, pods: &[PodState]) {
        let reachable = pods.iter().filter(|pod| pod.address.is_some());
        let listed: HashMap<&str, &PodState> = reachable.map(|pod| (pod.pod_uid.as_str(), pod)).collect();
        self.change(|state| {
            state.endpoints.retain(|sandbox, known| {
                let pod = listed.get(known.pod_uid.as_str());
                let stays = pod.is_some_and(|pod| pod.sandbox == *sandbox && known.is_of(pod));
                if !stays {
                    known.endpoint.gone.cancel();
                }
                stays
            });
            for pod in pods {
                state.apply_pod(pod);
            }
            state.pods = Source::SYNCED;
        });
    }

    /// Records the present state of a `Sandbox`.
    pub fn apply_sandbox(&self, sandbox: SandboxState) {
        self.change(|state| state.add_sandbox(sandbox));
    }

    /// Removes a `Sandbox` that was deleted.
    pub fn delete_sandbox(&self, sandbox: &SandboxState) {
        self.change(|state| state.remove_sandbox(&sandbox.sandbox, &sandbox.uid));
    }

    /// Replaces every `Sandbox` by a complete list.
    pub fn replace_sandboxes(&self, sandboxes: Vec<SandboxState>) {
        self.change(|state| {
            state.sandboxes.clear();
            state.claims.clear();
            state.uids.clear();
            for sandbox in sandboxes {
                state.add_sandbox(sandbox);
            }
            state.objects = Source::SYNCED;
        });
    }

    /// Records that the watch of Pods failed. A complete list makes them current again.
    pub fn set_pods_outdated(&self) {
        self.change(|state| state.pods.is_current = false);
    }

    /// Records that the watch of `Sandbox` objects failed. A complete list makes them current again.
    pub fn set_sandboxes_outdated(&self) {
        self.change(|state| state.objects.is_current = false);
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state: RwLockWriteGuard<'_, State> =
            self.state.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        drop(state);
        self.changes.send_replace(());
    }
}

impl State {
    fn is_current(&self) -> bool {
        self.pods.is_current && self.objects.is_current
    }

    fn add_sandbox(&mut self, sandbox: SandboxState) {
        if let Some(before) = self.sandboxes.get(&sandbox.sandbox) {
            let (before, uid) = (before.sandbox.clone(), before.uid.clone());
            self.remove_sandbox(&before, &uid);
        }
        if let Some(claim) = sandbox.claim_ref() {
            self.claims.insert(claim, sandbox.sandbox.clone());
        }
        self.uids.insert(sandbox.uid.clone(), sandbox.sandbox.clone());
        self.sandboxes.insert(sandbox.sandbox.clone(), sandbox);
    }

    /// Removes a sandbox, unless a newer one has its name.
    fn remove_sandbox(&mut self, sandbox: &SandboxRef, uid: &str) {
        if self.sandboxes.get(sandbox).is_none_or(|known| known.uid != uid) {
            return;
        }
        self.uids.remove(uid);
        let claim = self.sandboxes.remove(sandbox).and_then(|known| known.claim_ref());
        if let Some(claim) = claim
            && self.claims.get(&claim) == Some(sandbox)
        {
            self.claims.remove(&claim);
        }
    }

    fn apply_pod(&mut self, pod: &PodState) {
        match pod.address {
            Some(address) => {
                let known = self.endpoints.get(&pod.sandbox);
                if known.is_none_or(|known| known.endpoint.address != address || !known.is_of(pod)) {
                    let endpoint = Endpoint { address, uid: pod.uid.clone(), gone: CancellationToken::new() };
                    let pod_uid = pod.pod_uid.clone();
                    self.set_endpoint(pod.sandbox.clone(), PodEndpoint { pod_uid, endpoint });
                }
            }
            // A Pod that is not ready takes no new requests; those in flight go on.
            None if pod.is_running => drop(self.remove_endpoint(pod)),
            None => self.end(pod),
        }
    }

    fn set_endpoint(&mut self, sandbox: SandboxRef, endpoint: PodEndpoint) {
        if let Some(before) = self.endpoints.insert(sandbox, endpoint) {
            before.endpoint.gone.cancel();
        }
    }

    fn end(&mut self, pod: &PodState) {
        if let Some(known) = self.remove_endpoint(pod) {
            known.endpoint.gone.cancel();
        }
    }

    /// Removes the endpoint of a Pod, unless another Pod or a newer sandbox of the same name has replaced it.
    fn remove_endpoint(&mut self, pod: &PodState) -> Option<PodEndpoint> {
        let is_of_pod = self.endpoints.get(&pod.sandbox).is_some_and(|known| known.is_of(pod));
        if is_of_pod { self.endpoints.remove(&pod.sandbox) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::read::tests::{pod, pod_state, sandbox};

    fn boxed() -> SandboxRef {
        SandboxRef::new("agents", "box")
    }

    fn found(registry: &Registry) -> Option<Endpoint> {
        match registry.find(&boxed()) {
            Lookup::Found(endpoint) => Some(endpoint),
            _ => None,
        }
    }

    fn registry() -> Registry {
        let registry = Registry::default();
        registry.replace_sandboxes(vec![sandbox("u1")]);
        registry.replace_pods(&[pod_state(|_| ())]);
        registry
    }

    #[test]
    fn a_deleted_pod_ends_its_requests_and_an_unready_one_does_not() {
        let registry = registry();
        let endpoint = found(&registry).unwrap();
        registry.apply_pod(&pod_state(|pod| pod["status"]["conditions"][0]["status"] = "False".into()));
        assert!(found(&registry).is_none() && !endpoint.gone.is_cancelled());

        registry.apply_pod(&pod_state(|_| ()));
        let endpoint = found(&registry).unwrap();
        registry.delete_pod(&pod_state(|_| ()));
        assert!(found(&registry).is_none() && endpoint.gone.is_cancelled());
    }

    #[test]
    fn a_late_delete_of_an_old_sandbox_keeps_the_new_one() {
        let registry = registry();
        registry.apply_sandbox(sandbox("u2"));
        registry.apply_pod(&pod_state(|pod| pod["metadata"]["ownerReferences"][0]["uid"] = "u2".into()));
        registry.delete_pod(&pod_state(|_| ()));
        registry.delete_sandbox(&sandbox("u1"));
        assert_eq!(found(&registry).unwrap().uid, "u2");
        assert_eq!((registry.of_uid("u1"), registry.of_uid("u2")), (None, Some(boxed())));
    }

    #[test]
    fn the_end_of_a_second_pod_keeps_the_endpoint_of_the_first() {
        let registry = registry();
        let endpoint = found(&registry).unwrap();
        let second = |change: fn(&mut serde_json::Value)| {
            pod_state(|pod| {
                pod["metadata"]["uid"] = "p2".into();
                change(pod);
            })
        };
        registry.apply_pod(&second(|pod| pod["status"]["phase"] = "Pending".into()));
        registry.apply_pod(&second(|pod| pod["status"]["conditions"][0]["status"] = "False".into()));
        registry.delete_pod(&second(|_| ()));
        assert!(found(&registry).is_some() && !endpoint.gone.is_cancelled());

        registry.replace_pods(&[second(|_| ())]);
        assert!(found(&registry).is_some() && endpoint.gone.is_cancelled(), "another Pod has its address");
    }

    #[test]
    fn a_pod_with_the_uid_of_another_sandbox_is_not_reached() {
        let registry = registry();
        registry.apply_pod(&pod_state(|pod| pod["metadata"]["ownerReferences"][0]["uid"] = "forged".into()));
        assert!(found(&registry).is_none());
    }

    #[test]
    fn a_sandbox_is_found_by_its_claim_until_it_is_deleted() {
        let registry = registry();
        let claim = SandboxRef::new("agents", "thread-1");
        assert_eq!(registry.of_claim(&claim), Some(boxed()));
        assert_eq!(registry.claim_of(&boxed()).as_deref(), Some("thread-1"));
        registry.delete_sandbox(&sandbox("u1"));
        assert_eq!(registry.of_claim(&claim), None);
    }

    #[test]
    fn an_unknown_sandbox_is_missing_only_while_the_watches_are_current() {
        let registry = Registry::default();
        let other = SandboxRef::new("agents", "other");
        assert!(matches!(registry.find(&boxed()), Lookup::Unknown) && !registry.is_synced());
        registry.replace_pods(&[pod_state(|_| ())]);
        assert!(!registry.is_synced());
        registry.replace_sandboxes(vec![sandbox("u1")]);
        assert!(matches!(registry.find(&other), Lookup::Missing) && registry.is_synced());
        registry.set_pods_outdated();
        assert!(matches!(registry.find(&other), Lookup::Unknown) && registry.is_synced());
        assert!(found(&registry).is_some(), "known sandboxes stay reachable");
    }

    #[test]
    fn a_complete_list_removes_what_it_lacks() {
        let registry = registry();
        let endpoint = found(&registry).unwrap();
        registry.replace_pods(&[]);
        assert!(registry.is_empty() && endpoint.gone.is_cancelled());
    }

    #[test]
    fn a_suspended_sandbox_is_known_as_such() {
        let registry = registry();
        registry.apply_sandbox(SandboxState { is_suspended: true, ..sandbox("u1") });
        assert!(found(&registry).is_some(), "its Pod still runs");
        registry.delete_pod(&PodState::of(&pod(|_| ())).unwrap());
        assert!(matches!(registry.find(&boxed()), Lookup::Suspended));
    }
}
