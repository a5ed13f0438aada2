//! The `NetworkPolicy` that cuts sandboxes off the network. It exists before any Pod is created.

use std::collections::BTreeMap;

use sandpod_kube::k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicySpec};
use sandpod_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use sandpod_kube::kube::Api;
use sandpod_kube::kube::api::PostParams;
use serde_json::json;

use crate::backend::kubernetes::anchor::MANAGED_BY;
use crate::backend::kubernetes::api::{find, is, within};
use crate::backend::kubernetes::object;
use crate::{Error, ErrorKind, Result};

/// The label that the policy selects. A Pod is created with it.
pub(super) const NETWORK_LABEL: (&str, &str) = ("sandpod.dev/network", "deny-all");
pub(super) const NAME: &str = "sandpod-deny-all";

/// Creates the policy if it is missing, and verifies that it denies all traffic.
pub(super) async fn ensure(policies: &Api<NetworkPolicy>) -> Result<()> {
    if let Some(policy) = find(policies, NAME).await? {
        return verify(&policy);
    }
    match within(policies.create(&PostParams::default(), &deny_all()?)).await {
        Ok(created) => verify(&created),
        Err(cause) if is(&cause, 409) => match find(policies, NAME).await? {
            Some(policy) => verify(&policy),
            None => Err(wrong("was deleted while it was created")),
        },
        Err(cause) => Err(Error::api(&format!("create NetworkPolicy '{NAME}'"), &cause)),
    }
}

pub(super) fn deny_all() -> Result<NetworkPolicy> {
    denying(NAME, NETWORK_LABEL, &[(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned())].into())
}

/// Creates a sandbox's own policy in addition to the shared one. It is deleted with its `owner`.
pub(super) async fn make_own(
    policies: &Api<NetworkPolicy>,
    name: &str,
    selected: (&str, &str),
    labels: &BTreeMap<String, String>,
    owner: OwnerReference,
) -> Result<()> {
    let mut policy = denying(name, selected, labels)?;
    policy.metadata.owner_references = Some(vec![owner]);
    match within(policies.create(&PostParams::default(), &policy)).await {
        Err(cause) if !is(&cause, 409) => Err(Error::api(&format!("create NetworkPolicy '{name}'"), &cause)),
        _ => Ok(()),
    }
}

fn denying(
    name: &str,
    (label, value): (&str, &str),
    labels: &BTreeMap<String, String>,
) -> Result<NetworkPolicy> {
    object(json!({
        "metadata": { "name": name, "labels": labels },
        "spec": {
            "podSelector": { "matchLabels": { label: value } },
            "policyTypes": ["Ingress", "Egress"],
        },
    }))
}

fn verify(policy: &NetworkPolicy) -> Result<()> {
    let denies = policy.spec.as_ref().is_some_and(denies_all);
    if policy.metadata.deletion_timestamp.is_some() {
        return Err(wrong("is being deleted"));
    }
    if denies { Ok(()) } else { Err(wrong("exists, but does not deny all traffic of sandboxes")) }
}

fn denies_all(spec: &NetworkPolicySpec) -> bool {
    let selects = spec.pod_selector.as_ref().is_some_and(|selector| {
        let labels = selector.match_labels.iter().flatten();
        let labels: Vec<_> = labels.map(|(key, value)| (key.as_str(), value.as_str())).collect();
        labels == [NETWORK_LABEL] && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
    });
    let covers = |kind: &str| spec.policy_types.iter().flatten().any(|one| one == kind);
    let allows = spec.ingress.as_ref().is_some_and(|rules| !rules.is_empty())
        || spec.egress.as_ref().is_some_and(|rules| !rules.is_empty());
    selects && covers("Ingress") && covers("Egress") && !allows
}

fn wrong(what: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("No sandbox was made: the NetworkPolicy '{NAME}' {what}."),
        format!(
            "Delete it with kubectl delete networkpolicy {NAME} and try again, or set block_network to false."
        ),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn changed(pointer: &str, value: Value) -> NetworkPolicy {
        let mut policy = serde_json::to_value(deny_all().unwrap()).unwrap();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        policy.pointer_mut(parent).unwrap()[field] = value;
        serde_json::from_value(policy).unwrap()
    }

    #[test]
    fn our_own_policy_passes() {
        verify(&deny_all().unwrap()).unwrap();
        verify(&changed("/spec/egress", json!([]))).unwrap();
    }

    #[test]
    fn a_policy_that_lets_anything_through_is_refused() {
        for (pointer, value) in [
            ("/spec/egress", json!([{}])),
            ("/spec/ingress", json!([{}])),
            ("/spec/policyTypes", json!(["Ingress"])),
            ("/spec/policyTypes", json!(["Egress"])),
            ("/spec/podSelector/matchLabels", json!({ "sandpod.dev/network": "other" })),
            ("/spec/podSelector/matchLabels", json!({ "sandpod.dev/network": "deny-all", "app": "x" })),
            ("/spec/podSelector/matchExpressions", json!([{ "key": "a", "operator": "Exists" }])),
            ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
        ] {
            assert!(verify(&changed(pointer, value.clone())).is_err(), "{pointer} {value}");
        }
    }
}
