//! Calls to the API server: find, conditional patch and delete, and watch one object.

use std::sync::Arc;
use std::time::Duration;

pub(in crate::backend) use sandpod_kube::call::within;
use sandpod_kube::kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use sandpod_kube::kube::{self, Api, ResourceExt};
pub(in crate::backend) use sandpod_kube::watch::Watched as Object;
use sandpod_kube::watch::{Follower, SharedWatch};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use super::{MAX_TURNS, contended};
use crate::{Error, ErrorKind, Result, SandboxId};

/// How long a deleted object may take to disappear.
const GOING_LIMIT: Duration = Duration::from_secs(60);
/// How long to read an object again after a request whose response was lost.
const DOUBT_LIMIT: Duration = Duration::from_secs(60);
/// The pause before a failed read is repeated.
const PAUSE: Duration = Duration::from_millis(500);

/// Whether the API server answered with this HTTP status.
pub(in crate::backend) fn is(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// Returns the object, if it exists.
pub(in crate::backend) async fn find<K: Object>(api: &Api<K>, name: &str) -> Result<Option<K>> {
    let found = within(api.get_opt(name)).await;
    found.map_err(|cause| Error::api(&format!("read {} '{name}'", K::kind(&())), &cause))
}

/// Deletes the object with this name and UID. An object that is gone, or has another UID, is no error.
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

/// Deletes the object as it was read. Returns false if it has changed since, or is gone.
pub(in crate::backend) async fn delete_unchanged<K: Object>(
    api: &Api<K>,
    name: &str,
    uid: &str,
    version: &str,
) -> kube::Result<bool> {
    let exactly = Preconditions { uid: Some(uid.to_owned()), resource_version: Some(version.to_owned()) };
    as_expected(within(api.delete(name, &DeleteParams::background().preconditions(exactly))).await)
}

/// Patches an object. Returns false if the preconditions of the patch do not hold.
pub(in crate::backend) async fn patch<K: Object>(
    api: &Api<K>,
    name: &str,
    patch: &Value,
) -> kube::Result<bool> {
    as_expected(within(api.patch(name, &PatchParams::default(), &Patch::Merge(patch))).await)
}

/// Repeats `turn` until it returns true. Each turn reads the object before it changes it: a request whose response was
/// lost may have been carried out, and only the next read shows that.
pub(in crate::backend) async fn until_done<T>(id: &SandboxId, turn: impl Fn() -> T) -> Result<()>
where
    T: Future<Output = Result<bool>>,
{
    let (mut turns, mut end) = (0, None);
    while turns < MAX_TURNS {
        match turn().await {
            Ok(true) => return Ok(()),
            Ok(false) => turns += 1,
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                tracing::debug!(%id, %error, "a request got no answer: reading the object again");
                if *end.get_or_insert_with(|| Instant::now() + DOUBT_LIMIT) <= Instant::now() {
                    return Err(error);
                }
                sleep(PAUSE).await;
            }
            Err(refusal) => return Err(refusal),
        }
    }
    Err(contended(id))
}

/// Whether the preconditions of a call held.
fn as_expected<T>(answer: kube::Result<T>) -> kube::Result<bool> {
    match answer {
        Ok(_) => Ok(true),
        Err(cause) if is(&cause, 404) || is(&cause, 409) => Ok(false),
        Err(cause) => Err(cause),
    }
}

/// Waits until the object differs from what was read.
pub(in crate::backend) async fn changed<K: Object>(
    objects: &SharedWatch<K>,
    name: &str,
    version: &str,
) -> Result<()> {
    let mut watch = Watch::new(objects, name);
    while watch.next().await?.is_some_and(|now| now.resource_version().as_deref() == Some(version)) {}
    Ok(())
}

/// Waits until there is no object with this name and UID.
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
            format!("{kind} '{name}' was deleted but still exists after {}s.", GOING_LIMIT.as_secs()),
            format!("See why with kubectl describe {} {name}.", kind.to_lowercase()),
        ))
    })
}

/// The states of one object. A failed read is repeated.
pub(in crate::backend) struct Watch<K> {
    what: String,
    states: Follower<K>,
}

impl<K: Object> Watch<K> {
    pub(in crate::backend) fn new(objects: &SharedWatch<K>, name: &str) -> Self {
        Self { what: format!("watch {} '{name}'", K::kind(&())), states: objects.follow(name) }
    }

    /// Returns the next state of the object, or none while it does not exist. Fails if watching is refused.
    /// Cancel-safe.
    pub(in crate::backend) async fn next(&mut self) -> Result<Option<Arc<K>>> {
        loop {
            match self.states.next().await {
                Ok(object) => return Ok(object),
                Err(cause) if is(&cause, 401) || is(&cause, 403) => {
                    return Err(Error::api(&self.what, &cause));
                }
                Err(lost) => tracing::debug!(%lost, "{}: retrying", self.what),
            }
            sleep(PAUSE).await;
        }
    }
}
