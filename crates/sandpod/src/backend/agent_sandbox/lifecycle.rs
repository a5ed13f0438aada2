//! The `lifecycle` of a claim, by which the cluster itself ends a sandbox whose lifetime is over.

use std::time::{Duration, SystemTime};

use sandpod_kube::k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

/// Time between the end of a guest and that of its sandbox, whose lifetime is over.
const GRACE: Duration = Duration::from_secs(60);

/// Returns when the cluster ends a sandbox that was handed out at `created`: a little after its guest does.
pub(super) fn end(created: SystemTime, ttl: Option<Duration>) -> Option<SystemTime> {
    created.checked_add(ttl?)?.checked_add(GRACE)
}

/// Returns when the cluster deletes a claim by itself: at `end`, and with an idle time to live that long after its Pod
/// has ended. The guest ends an idle Pod, but a Pod can also fail, and its owner has that time to ask for it. Null for
/// a claim that stays. An absent field is null, so that a patch removes it.
pub(super) fn lifecycle(end: Option<SystemTime>, idle_ttl: Option<Duration>) -> Value {
    let end = end.and_then(|end| Timestamp::try_from(end).ok());
    if end.is_none() && idle_ttl.is_none() {
        return Value::Null;
    }
    let seconds = |idle: Duration| i32::try_from(idle.max(GRACE).as_secs()).unwrap_or(i32::MAX);
    json!({
        "shutdownTime": end.map(|end| format!("{end:.0}")),
        "ttlSecondsAfterFinished": idle_ttl.map(seconds),
        "shutdownPolicy": "Delete",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cluster_deletes_a_sandbox_a_minute_after_its_guest_ended() {
        let created = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let of = |ttl, idle_ttl| {
            let said = lifecycle(end(created, ttl), idle_ttl);
            assert_eq!(said["shutdownPolicy"], "Delete");
            (said["shutdownTime"].clone(), said["ttlSecondsAfterFinished"].clone())
        };
        let time = json!("2026-01-01T01:01:00Z");
        assert_eq!(of(seconds(3600), None), (time.clone(), Value::Null));
        assert_eq!(of(seconds(3600), seconds(1800)), (time, json!(1800)));
        assert_eq!(of(None, seconds(10)), (Value::Null, json!(60)), "no less than a minute");
        assert_eq!(of(None, seconds(u64::from(u32::MAX))).1, json!(i32::MAX));
        assert_eq!(lifecycle(end(created, None), None), Value::Null);
    }
}
