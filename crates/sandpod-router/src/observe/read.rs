//! Reads Pods and `Sandbox` objects.

use std::net::IpAddr;

use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use sandpod_kube::kube::ResourceExt as _;
use sandpod_kube::kube::api::DynamicObject;

use super::{PodState, SandboxState};
use crate::target::{SandboxRef, is_pod_address};

const SANDBOX_GROUP: &str = "agents.x-k8s.io/";
const CLAIM_GROUP: &str = "extensions.agents.x-k8s.io/";
/// On Pods of a warm pool until a claim adopts them.
const UNCLAIMED: &str = "agents.x-k8s.io/warm-pool-sandbox";

impl PodState {
    /// The state of a Pod. None: no `Sandbox` controls it.
    #[must_use]
    pub fn of(pod: &Pod) -> Option<Self> {
        let owner = controller(pod.owner_references(), "Sandbox", SANDBOX_GROUP)?;
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        Some(Self {
            sandbox: SandboxRef::new(pod.namespace()?, &owner.name),
            uid: owner.uid.clone(),
            pod_uid: pod.uid()?,
            address: address(pod),
            is_running: phase == Some("Running") && pod.metadata.deletion_timestamp.is_none(),
        })
        .map(|state| Self { address: state.address.filter(|_| state.is_running), ..state })
    }
}

impl SandboxState {
    /// The state of a `Sandbox`.
    #[must_use]
    pub fn of(sandbox: &DynamicObject) -> Option<Self> {
        let claim = controller(sandbox.owner_references(), "SandboxClaim", CLAIM_GROUP);
        Some(Self {
            sandbox: SandboxRef::new(sandbox.namespace()?, sandbox.name_any()),
            uid: sandbox.uid()?,
            claim: claim.map(|claim| claim.name.clone()),
            is_suspended: sandbox.data["spec"]["operatingMode"] == "Suspended",
        })
    }
}

fn controller<'a>(owners: &'a [OwnerReference], kind: &str, group: &str) -> Option<&'a OwnerReference> {
    let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
    (owner.kind == kind && owner.api_version.starts_with(group)).then_some(owner)
}

/// The address of a Pod that takes requests: ready, claimed, with a network of its own.
fn address(pod: &Pod) -> Option<IpAddr> {
    let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let is_ready =
        conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let address = status.pod_ip.as_deref()?.parse().ok().filter(is_pod_address)?;
    let hosts = status.host_ips.iter().flatten().filter_map(|host| host.ip.as_str().into());
    let mut hosts = hosts.chain(status.host_ip.as_deref()).filter_map(|host| host.parse::<IpAddr>().ok());
    let is_nodes = spec.host_network == Some(true) || hosts.any(|host| host == address);
    (is_ready && !is_nodes && !pod.labels().contains_key(UNCLAIMED)).then_some(address)
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A Pod of the sandbox `box`, with changes.
    pub(crate) fn pod(change: impl FnOnce(&mut Value)) -> Pod {
        let mut pod = json!({
            "metadata": {
                "name": "box", "namespace": "agents", "uid": "p1",
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

    pub(crate) fn pod_state(change: impl FnOnce(&mut Value)) -> PodState {
        PodState::of(&pod(change)).expect("the Pod of a sandbox")
    }

    /// The sandbox `box` of the claim `thread-1`.
    pub(crate) fn sandbox(uid: &str) -> SandboxState {
        let object = json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {
                "name": "box", "namespace": "agents", "uid": uid,
                "ownerReferences": [{
                    "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "name": "thread-1",
                    "uid": "c1", "controller": true,
                }],
            },
            "spec": { "operatingMode": "Running" },
        });
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        SandboxState::of(&object).expect("a sandbox")
    }

    #[test]
    fn only_ready_claimed_pods_with_a_network_of_their_own_have_an_address() {
        type Change = fn(&mut Value);
        let cases: [(&str, Change); 8] = [
            ("not ready", |pod| pod["status"]["conditions"][0]["status"] = json!("False")),
            ("unclaimed", |pod| pod["metadata"]["labels"] = json!({ UNCLAIMED: "hash" })),
            ("host network", |pod| pod["spec"]["hostNetwork"] = json!(true)),
            ("the node's address", |pod| pod["status"]["podIP"] = json!("192.168.0.1")),
            ("its second address", |pod| {
                pod["status"]["hostIPs"] = json!([{ "ip": "fd00::1" }]);
                pod["status"]["podIP"] = json!("fd00:0::1");
            }),
            ("a metadata server", |pod| pod["status"]["podIP"] = json!("169.254.169.254")),
            ("being deleted", |pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")),
            ("ended", |pod| pod["status"]["phase"] = json!("Failed")),
        ];
        for (case, change) in cases {
            assert_eq!(pod_state(change).address, None, "{case}");
        }
        assert_eq!(pod_state(|_| ()).address.unwrap().to_string(), "10.0.0.7");
    }

    #[test]
    fn a_pod_of_another_controller_is_not_a_sandbox() {
        for (field, value) in
            [("kind", json!("Job")), ("apiVersion", json!("evil.io/v1")), ("controller", json!(false))]
        {
            let pod = pod(|pod| pod["metadata"]["ownerReferences"][0][field] = value);
            assert_eq!(PodState::of(&pod), None, "{field}");
        }
    }
}
