//! Whether a Pod is still the place of a sandbox.

use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::ResourceExt;

use crate::backend::PlaceState;

/// Returns why the Pod `name` is no longer the place that the Pod with `uid` was. None if it still is.
pub(in crate::backend) fn loss(pod: Option<&Pod>, namespace: &str, name: &str, uid: &str) -> Option<String> {
    let Some(pod) = pod else {
        return Some(format!("Pod '{name}' not found in namespace '{namespace}'."));
    };
    if pod.uid().as_deref() != Some(uid) {
        return Some(format!("Pod '{name}' was replaced by another one of that name."));
    }
    if pod.metadata.deletion_timestamp.is_some() {
        return Some(format!("Pod '{name}' is being deleted."));
    }
    let status = pod.status.as_ref()?;
    let why = status.message.as_ref().or(status.reason.as_ref());
    let why = why.map(|why| format!(": {}", why.trim_end_matches('.'))).unwrap_or_default();
    match status.phase.as_deref() {
        Some("Failed") => Some(format!("Pod '{name}' has failed{why}.")),
        Some("Succeeded") => Some(format!("Pod '{name}' has ended{why}.")),
        _ => None,
    }
}

/// Returns the state of the place that is the Pod with `uid`.
pub(in crate::backend) fn place_state(
    pod: Option<&Pod>,
    namespace: &str,
    name: &str,
    uid: &str,
) -> PlaceState {
    let phase = pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref());
    match loss(pod, namespace, name, uid) {
        None => PlaceState::Alive,
        Some(_) if phase == Some("Succeeded") => PlaceState::Ended,
        Some(_) => PlaceState::Lost,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn said(changes: &Value) -> Option<String> {
        let mut pod = json!({ "metadata": { "name": "p", "uid": "1" }, "status": { "phase": "Running" } });
        for (part, fields) in changes.as_object().unwrap() {
            pod[part].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        }
        loss(Some(&serde_json::from_value(pod).unwrap()), "n", "p", "1")
    }

    #[test]
    fn a_running_or_starting_pod_is_not_lost() {
        assert_eq!(said(&json!({})), None);
        assert_eq!(said(&json!({ "status": { "phase": "Pending" } })), None);
    }

    #[test]
    fn every_loss_has_a_reason() {
        for (changes, reason) in [
            (json!({ "metadata": { "uid": "2" } }), "replaced"),
            (json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }), "being deleted"),
            (json!({ "status": { "phase": "Failed", "reason": "Evicted" } }), "failed: Evicted"),
            (json!({ "status": { "phase": "Succeeded" } }), "ended"),
        ] {
            let said = said(&changes).unwrap();
            assert!(said.contains(reason), "{said}");
        }
        assert_eq!(loss(None, "n", "p", "1").unwrap(), "Pod 'p' not found in namespace 'n'.");
    }
}
