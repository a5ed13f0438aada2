//! Derives from a claim and its Pod whether the sandbox is ready.

use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use sandpod_kube::kube::ResourceExt;

use super::claims::Claim;
use crate::backend::kubernetes::loss::loss;
use crate::backend::kubernetes::startup::{containers, permanent_failure};

/// Reasons of the condition `Ready` which mean that the sandbox has ended.
const ENDED: [&str; 1] = ["PodSucceeded"];
/// Reasons which mean that its lifetime is over, also while it is suspended.
const EXPIRED: [&str; 2] = ["ClaimExpired", "SandboxExpired"];
/// The reason which means that it was suspended.
const SUSPENDED: &str = "SandboxSuspended";
/// Reasons which mean that its Pod is lost.
const LOST: [&str; 1] = ["PodFailed"];
/// Reasons which mean that it never gets a Pod.
const REFUSED: [&str; 5] = [
    "EnvVarsInjectionRejected",
    "InvalidConfiguration",
    "InvalidMetadata",
    "TemplateNotFound",
    "VolumeClaimTemplatesError",
];
/// The reason which means that the pool is missing.
pub(super) const NO_POOL: &str = "WarmPoolNotFound";

/// The state of the sandbox by the claim's status.
#[derive(Debug, PartialEq)]
pub(super) enum ClaimState {
    Ready,
    /// It waits, and for what.
    Waiting(String),
    /// It has no Pod until it is resumed.
    Suspended,
    Ended(String),
    Lost(String),
    Refused(String),
}

/// The readiness of the sandbox by its claim and its Pod.
#[derive(Debug, PartialEq)]
pub(super) enum Readiness {
    /// It runs in its Pod.
    Ready,
    /// Another Pod runs in the place of the one that it had.
    Replaced(String),
    Waiting(String),
    /// It has no Pod until it is resumed.
    Suspended,
    /// Its Pod is gone or terminating, and why. The controller will make another one.
    Terminating(String),
    /// It has lost its Pod for good, and why.
    Lost(String),
    /// It will not start, and why.
    Failed(String),
}

/// Returns the state of the sandbox by the claim's status.
pub(super) fn claim_state(claim: &Claim) -> ClaimState {
    let Some(ready) = ready(claim) else {
        return ClaimState::Waiting("the controller has not seen it yet".to_owned());
    };
    let reason = ready.reason.as_str();
    let said = format!("{reason}: {}", ready.message.trim_end_matches('.'));
    if EXPIRED.contains(&reason) {
        return ClaimState::Ended(said);
    }
    // Its Pod may end in any way then.
    if reason == SUSPENDED || claim.is_being_suspended() {
        return ClaimState::Suspended;
    }
    let named = claim.status.sandbox.as_ref().is_some_and(|sandbox| !sandbox.name.is_empty());
    if ready.status == "True" && named {
        return ClaimState::Ready;
    }
    if ENDED.contains(&reason) {
        ClaimState::Ended(said)
    } else if LOST.contains(&reason) {
        ClaimState::Lost(said)
    } else if REFUSED.contains(&reason) {
        ClaimState::Refused(said)
    } else {
        ClaimState::Waiting(said)
    }
}

/// Whether the controller has ended the claim's Pod because it was suspended.
pub(super) fn is_suspended(claim: &Claim) -> bool {
    ready(claim).is_some_and(|ready| ready.reason == SUSPENDED)
}

/// Whether the sandbox runs by the claim's status, whatever our annotations are.
pub(super) fn runs(claim: &Claim) -> bool {
    ready(claim).is_some_and(|ready| ready.status == "True")
}

/// Whether the lifetime of the claim is over.
pub(super) fn has_expired(claim: &Claim) -> bool {
    ready(claim).is_some_and(|ready| EXPIRED.contains(&ready.reason.as_str()))
}

fn ready(claim: &Claim) -> Option<&Condition> {
    claim.status.conditions.iter().find(|condition| condition.type_ == "Ready")
}

/// Whether the claim waits because its pool is missing.
pub(super) fn lacks_pool(claim: &Claim) -> bool {
    ready(claim).is_some_and(|ready| ready.status != "True" && ready.reason == NO_POOL)
}

/// Returns the readiness of the sandbox.
pub(super) fn readiness(claim: &Claim, pod: Option<&Pod>, namespace: &str) -> Readiness {
    let claim_state = claim_state(claim);
    match claim_state {
        ClaimState::Suspended => return Readiness::Suspended,
        ClaimState::Ended(why) | ClaimState::Lost(why) => return Readiness::Lost(format!("{why}.")),
        ClaimState::Refused(why) => return Readiness::Failed(why),
        ClaimState::Ready | ClaimState::Waiting(_) => {}
    }
    let broken = pod.and_then(|pod| containers(pod.status.as_ref()?).find_map(permanent_failure));
    if let Some(why) = broken {
        return Readiness::Failed(format!("Pod '{}' can't start: {why}", claim.pod_name()));
    }
    let running = pod.filter(|pod| is_ready(pod)).and_then(ResourceExt::uid);
    match (&claim.pod_uid, running, claim_state) {
        (None, Some(_), ClaimState::Ready) => Readiness::Ready,
        (Some(had), Some(uid), ClaimState::Ready) if *had == uid => Readiness::Ready,
        (Some(_), Some(_), ClaimState::Ready) => Readiness::Replaced(format!(
            "Pod '{}' was replaced by another one of that name.",
            claim.pod_name()
        )),
        (Some(had), ..) => match loss(pod, namespace, claim.pod_name(), had) {
            Some(why) => Readiness::Terminating(why),
            None => Readiness::Waiting("its Pod is not ready at the moment".to_owned()),
        },
        (None, _, ClaimState::Waiting(why)) => Readiness::Waiting(why),
        (None, ..) => Readiness::Waiting("its Pod is starting".to_owned()),
    }
}

/// Whether the Pod is ready and not being deleted.
pub(super) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn condition(status: &str, reason: &str) -> Value {
        json!([{
            "type": "Ready", "status": status, "reason": reason, "message": "the words.",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }])
    }

    fn claim(pod_uid: Option<&str>, conditions: &Value) -> Claim {
        let claim = json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
            "kind": "SandboxClaim",
            "metadata": {
                "name": "a", "uid": "1", "resourceVersion": "2",
                "labels": { "app.kubernetes.io/managed-by": "sandpod" },
                "annotations": { "sandpod.dev/generation": "1", "sandpod.dev/pod-uid": pod_uid.unwrap_or_default() },
            },
            "spec": { "warmPoolRef": { "name": "pool" } },
            "status": { "conditions": conditions, "sandbox": { "name": "pool-x" } },
        });
        Claim::read(serde_json::from_value(claim).unwrap()).unwrap()
    }

    fn pod(uid: &str, ready: bool) -> Pod {
        let ready = if ready { "True" } else { "False" };
        let conditions = json!([{ "type": "Ready", "status": ready }]);
        serde_json::from_value(json!({
            "metadata": { "name": "pool-x", "uid": uid },
            "status": { "phase": "Running", "conditions": conditions },
        }))
        .unwrap()
    }

    #[test]
    fn a_ready_claim_has_its_place_in_the_pod_that_it_names() {
        let claim = claim(None, &condition("True", "DependenciesReady"));
        assert_eq!(claim.pod_name(), "pool-x");
        assert_eq!(readiness(&claim, Some(&pod("p", true)), "n"), Readiness::Ready);
        assert!(matches!(readiness(&claim, Some(&pod("p", false)), "n"), Readiness::Waiting(_)));
        assert!(matches!(readiness(&claim, None, "n"), Readiness::Waiting(_)));
    }

    #[test]
    fn a_pod_that_went_is_known_by_its_uid_and_so_is_the_one_in_its_place() {
        let claim = claim(Some("p"), &condition("True", "DependenciesReady"));
        assert_eq!(readiness(&claim, Some(&pod("p", true)), "n"), Readiness::Ready);
        assert!(matches!(readiness(&claim, Some(&pod("q", true)), "n"), Readiness::Replaced(_)));
        assert!(matches!(readiness(&claim, Some(&pod("q", false)), "n"), Readiness::Terminating(_)));
        assert!(matches!(readiness(&claim, None, "n"), Readiness::Terminating(_)));
        assert!(matches!(readiness(&claim, Some(&pod("p", false)), "n"), Readiness::Waiting(_)));
    }

    #[test]
    fn permanent_failures_are_reported_at_once_with_the_controllers_message() {
        for reason in REFUSED {
            let verdict = readiness(&claim(None, &condition("False", reason)), None, "n");
            assert_eq!(verdict, Readiness::Failed(format!("{reason}: the words")));
        }
        for reason in ENDED.into_iter().chain(EXPIRED).chain(LOST) {
            let verdict = readiness(&claim(Some("p"), &condition("False", reason)), None, "n");
            assert_eq!(verdict, Readiness::Lost(format!("{reason}: the words.")));
        }
        let mut broken = pod("p", false);
        let waiting = json!([{
            "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "waiting": { "reason": "ImagePullBackOff", "message": "no such image" } },
        }]);
        broken.status.as_mut().unwrap().container_statuses = serde_json::from_value(waiting).unwrap();
        let pending = claim(None, &condition("False", "DependenciesNotReady"));
        let Readiness::Failed(why) = readiness(&pending, Some(&broken), "n") else {
            panic!("it is no failure")
        };
        assert!(why.contains("ImagePullBackOff: no such image"), "{why}");
    }

    #[test]
    fn a_suspended_claim_is_not_lost_unless_it_has_expired() {
        let suspended = claim(Some("p"), &condition("False", SUSPENDED));
        assert_eq!(readiness(&suspended, None, "n"), Readiness::Suspended);
        let mut ours = claim(Some("p"), &condition("False", "PodSucceeded"));
        ours.recorded
            .annotations
            .insert("sandpod.dev/suspended-at".to_owned(), "2026-01-01T00:00:00Z".to_owned());
        assert_eq!(readiness(&ours, None, "n"), Readiness::Suspended, "its Pod ended because of that");
        for reason in EXPIRED {
            ours.status = claim(None, &condition("False", reason)).status;
            assert!(matches!(readiness(&ours, None, "n"), Readiness::Lost(_)), "{reason}");
        }
    }

    #[test]
    fn a_missing_pool_is_detected() {
        assert!(lacks_pool(&claim(None, &condition("False", NO_POOL))));
        assert!(!lacks_pool(&claim(None, &condition("True", "DependenciesReady"))));
    }
}
