//! Calls to the API server that end, one way or the other.

use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use sandpod_kube::k8s_openapi::serde::de::DeserializeOwned;
use sandpod_kube::kube::api::{DeleteParams, Preconditions};
use sandpod_kube::kube::runtime::WatchStreamExt;
use sandpod_kube::kube::runtime::watcher::{self, watch_object};
use sandpod_kube::kube::{self, Api, Resource, ResourceExt};
use tokio::time::timeout;

use crate::{Error, ErrorKind, Result};

/// How long one call may take; kube itself waits for ever.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// How long a deleted object may take to go.
const GOING_LIMIT: Duration = Duration::from_secs(60);

/// An object that can be watched.
pub(super) trait Object:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static
{
}

impl<K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static> Object for K {}

/// A call that is given up when it takes too long.
pub(super) async fn within<T>(call: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    let slow = || kube::Error::Service(format!("no answer within {CALL_LIMIT:?}").into());
    timeout(CALL_LIMIT, call).await.unwrap_or_else(|_| Err(slow()))
}

/// Whether the API server answered with this HTTP status.
pub(super) fn is(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// The object, if there is one.
pub(super) async fn find<K: Object>(api: &Api<K>, name: &str) -> Result<Option<K>> {
    let found = within(api.get_opt(name)).await;
    found.map_err(|cause| Error::api(&format!("read {} '{name}'", K::kind(&())), &cause))
}

/// Deletes the object with this name and UID; that it is gone or another one already is no error.
pub(super) async fn delete<K: Object>(api: &Api<K>, name: &str, uid: &str) -> Result<()> {
    let exactly = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    let how = DeleteParams::background().grace_period(1).preconditions(exactly);
    match within(api.delete(name, &how)).await {
        Err(cause) if !is(&cause, 404) && !is(&cause, 409) => {
            Err(Error::api(&format!("delete {} '{name}'", K::kind(&())), &cause))
        }
        _ => Ok(()),
    }
}

/// Watches until there is no object with this name and UID.
pub(super) async fn wait_gone<K: Object>(api: &Api<K>, name: &str, uid: &str) -> Result<()> {
    let mut watch = Watch::new(api, name);
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

/// The states of one object, as they come. A lost watch starts again by itself.
pub(super) struct Watch<K> {
    what: String,
    states: BoxStream<'static, Result<Option<K>, watcher::Error>>,
}

impl<K: Object> Watch<K> {
    pub(super) fn new(api: &Api<K>, name: &str) -> Self {
        let states = watch_object(api.clone(), name).default_backoff().boxed();
        Self { what: format!("watch {} '{name}'", K::kind(&())), states }
    }

    /// The object, or none while there is none; an error if watching is refused. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Option<K>> {
        while let Some(state) = self.states.next().await {
            match state {
                Ok(object) => return Ok(object),
                Err(watcher::Error::InitialListFailed(cause) | watcher::Error::WatchStartFailed(cause))
                    if is(&cause, 401) || is(&cause, 403) =>
                {
                    return Err(Error::api(&self.what, &cause));
                }
                Err(lost) => tracing::debug!(%lost, "{}: once more", self.what),
            }
        }
        let message = format!("There was an end to: {}.", self.what);
        Err(Error::new(ErrorKind::Internal, message, "Report this: a watch never ends by itself."))
    }
}
