//! Calls to the API server that end, one way or the other.

use std::sync::Arc;
use std::time::Duration;

use sandpod_kube::kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use sandpod_kube::kube::{self, Api, ResourceExt};
pub(in crate::backend) use sandpod_kube::watch::Watched as Object;
use sandpod_kube::watch::{Follower, SharedWatch};
use serde_json::Value;
use tokio::time::timeout;

use crate::{Error, ErrorKind, Result};

/// How long one call may take; kube itself waits for ever.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// How long a deleted object may take to go.
const GOING_LIMIT: Duration = Duration::from_secs(60);
/// How long it takes until what can't be read is read again.
const PAUSE: Duration = Duration::from_millis(500);

/// A call that is given up when it takes too long.
pub(in crate::backend) async fn within<T>(call: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    let slow = || kube::Error::Service(format!("no answer within {CALL_LIMIT:?}").into());
    timeout(CALL_LIMIT, call).await.unwrap_or_else(|_| Err(slow()))
}

/// Whether the API server answered with this HTTP status.
pub(in crate::backend) fn is(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// The object, if there is one.
pub(in crate::backend) async fn find<K: Object>(api: &Api<K>, name: &str) -> Result<Option<K>> {
    let found = within(api.get_opt(name)).await;
    found.map_err(|cause| Error::api(&format!("read {} '{name}'", K::kind(&())), &cause))
}

/// Deletes the object with this name and UID; that it is gone or another one already is no error.
pub(in crate::backend) async fn delete<K: Object>(api: &Api<K>, name: &str, uid: &str) -> Result<()> {
    let exactly = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    let how = DeleteParams::background().grace_period(1).preconditions(exactly);
    match within(api.delete(name, &how)).await {
        Err(cause) if !is(&cause, 404) && !is(&cause, 409) => {
            Err(Error::api(&format!("delete {} '{name}'", K::kind(&())), &cause))
        }
        _ => Ok(()),
    }
}

/// Deletes the object exactly as it was read; false when it has changed since, or is gone.
pub(in crate::backend) async fn delete_unchanged<K: Object>(
    api: &Api<K>,
    name: &str,
    uid: &str,
    version: &str,
) -> kube::Result<bool> {
    let exactly = Preconditions { uid: Some(uid.to_owned()), resource_version: Some(version.to_owned()) };
    as_expected(within(api.delete(name, &DeleteParams::background().preconditions(exactly))).await)
}

/// Changes an object; false when what the patch expects is not so.
pub(in crate::backend) async fn patch<K: Object>(
    api: &Api<K>,
    name: &str,
    patch: &Value,
) -> kube::Result<bool> {
    as_expected(within(api.patch(name, &PatchParams::default(), &Patch::Merge(patch))).await)
}

/// Whether the object was as the call expects it.
fn as_expected<T>(answer: kube::Result<T>) -> kube::Result<bool> {
    match answer {
        Ok(_) => Ok(true),
        Err(cause) if is(&cause, 404) || is(&cause, 409) => Ok(false),
        Err(cause) => Err(cause),
    }
}

/// Watches until the object is no more as it was read.
pub(in crate::backend) async fn changed<K: Object>(
    objects: &SharedWatch<K>,
    name: &str,
    version: &str,
) -> Result<()> {
    let mut watch = Watch::new(objects, name);
    while watch.next().await?.is_some_and(|now| now.resource_version().as_deref() == Some(version)) {}
    Ok(())
}

/// Watches until there is no object with this name and UID.
pub(in crate::backend) async fn wait_gone<K: Object>(
    objects: &SharedWatch<K>,
    name: &str,
    uid: &str,
) -> Result<()> {
    let mut watch = Watch::new(objects, name);
    let going = async {
        while watch.next().await?.is_some_and(|object| object.uid().as_deref() == Some(uid)) {}
        Ok(())
    };
    timeout(GOING_LIMIT, going).await.unwrap_or_else(|_| {
        let kind = K::kind(&());
        Err(Error::new(
            ErrorKind::Timeout,
            format!("{kind} '{name}' was deleted but is still there after {}s.", GOING_LIMIT.as_secs()),
            format!("See why with kubectl describe {} {name}.", kind.to_lowercase()),
        ))
    })
}

/// The states of one object, as they come. What can't be read now is read again later.
pub(in crate::backend) struct Watch<K> {
    what: String,
    states: Follower<K>,
}

impl<K: Object> Watch<K> {
    pub(in crate::backend) fn new(objects: &SharedWatch<K>, name: &str) -> Self {
        Self { what: format!("watch {} '{name}'", K::kind(&())), states: objects.follow(name) }
    }

    /// The object, or none while there is none; an error if watching is refused. Cancel-safe.
    pub(in crate::backend) async fn next(&mut self) -> Result<Option<Arc<K>>> {
        loop {
            match self.states.next().await {
                Ok(object) => return Ok(object),
                Err(cause) if is(&cause, 401) || is(&cause, 403) => {
                    return Err(Error::api(&self.what, &cause));
                }
                Err(lost) => tracing::debug!(%lost, "{}: once more", self.what),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
