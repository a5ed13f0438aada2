//! What is asked of the API server again and again: objects by their names, changes on conditions, waiting.

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

/// How long a deleted object may take to go.
const GOING_LIMIT: Duration = Duration::from_secs(60);
/// For how long it is tried to learn what became of an order whose answer was lost.
const DOUBT_LIMIT: Duration = Duration::from_secs(60);
/// How long it takes until what can't be read is read again.
const PAUSE: Duration = Duration::from_millis(500);

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

/// Takes turns until one says that all is done. A turn reads what is there before it changes that: an order whose answer
/// was lost may have been carried out, and only the next reading tells.
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
                tracing::debug!(%id, %error, "it is not known what became of an order");
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
            sleep(PAUSE).await;
        }
    }
}
