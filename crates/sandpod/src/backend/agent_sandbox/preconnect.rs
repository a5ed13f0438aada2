//! Preconnects to guests in Pods of a warm pool that are not claimed yet.
//!
//! Opening an exec stream takes most of a warm start. A process that claims from a pool therefore keeps a stream open
//! to each of the Pods that the pool hands out next. Nothing is sent on it before the Pod is ours. It is closed when
//! the Pod is claimed by another process, or this process has not claimed for a while.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::FutureExt as _;
use sandpod_client::ByteStream;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::ResourceExt as _;
use tokio::io::AsyncReadExt as _;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::connect::{ConnectionMode, GuestLocation, unread};
use super::readiness::is_ready;
use super::{AgentSandbox, Inner};
use crate::Result;

/// The number of Pods of a pool to preconnect to.
const MAX_PRECONNECTED: usize = 2;
/// How long after a claim preconnecting begins: the claimed sandbox goes first.
const LULL: Duration = Duration::from_millis(250);
/// The pause before a pool is read again.
const PAUSE: Duration = Duration::from_millis(500);
/// How long after its last claim a process preconnects.
const LIFE: Duration = Duration::from_secs(60);
/// The most bytes of a guest's greeting that are read ahead.
const GREETING: usize = 1024;

/// Streams on which a guest has sent its first byte.
#[derive(Default)]
pub(super) struct Preconnected(Mutex<State>);

#[derive(Default)]
struct State {
    /// By the UID of the guest's Pod.
    held: HashMap<String, Box<dyn ByteStream>>,
    /// The pool that was claimed from last, and when.
    claimed: Option<(String, Instant)>,
    /// The task that keeps the streams.
    task: Option<AbortHandle>,
}

impl Drop for Preconnected {
    fn drop(&mut self) {
        if let Some(task) = self.state().task.take() {
            task.abort();
        }
    }
}

impl Preconnected {
    /// Takes the stream to the guest in the Pod with this UID, if there is one that has not ended.
    pub(super) fn take(&self, pod_uid: &str) -> Option<Box<dyn ByteStream>> {
        let held = self.state().held.remove(pod_uid);
        held.and_then(unless_ended)
    }

    /// Records a claim from a pool.
    pub(super) fn note_claim(&self, pool: &str) {
        self.state().claimed = Some((pool.to_owned(), Instant::now()));
    }

    /// Waits until nothing was claimed for a while and returns the pool. After a longer while it drops all streams and
    /// returns none.
    async fn lull(&self) -> Option<(String, Instant)> {
        loop {
            let (pool, at) = self.state().claimed.clone()?;
            sleep_until(at + LULL).await;
            let mut state = self.state();
            match &state.claimed {
                Some((_, last)) if *last != at => {}
                _ if at.elapsed() < LIFE => return Some((pool, at + LIFE)),
                _ => {
                    *state = State::default();
                    return None;
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AgentSandbox {
    /// Preconnects for the next claims from the same pool, for as long as this backend exists.
    pub(super) fn start_preconnecting(&self) {
        let mut state = self.0.preconnected.state();
        if state.claimed.is_some() && state.task.is_none() {
            state.task = Some(tokio::spawn(keep_preconnected(Arc::downgrade(&self.0))).abort_handle());
        }
    }

    /// Opens streams to the guests that `pool` hands out next, and closes those to others.
    async fn preconnect(&self, pool: &str) -> Result<()> {
        let locations = self.next_in(pool).await?;
        self.0
            .preconnected
            .state()
            .held
            .retain(|held, _| locations.iter().any(|location| location.pod_uid == *held));
        for location in locations {
            if self.0.preconnected.state().held.contains_key(&location.pod_uid) {
                continue;
            }
            if let Ok(stream) = self.open_live(ConnectionMode::Exec, &location).await {
                self.0.preconnected.state().held.insert(location.pod_uid, stream);
            }
        }
        Ok(())
    }

    /// Returns the guests that a pool hands out next: those of its oldest ready Pods.
    async fn next_in(&self, pool: &str) -> Result<Vec<GuestLocation>> {
        let Some(selector) = self.0.pools.selector(pool).await? else { return Ok(Vec::new()) };
        let mut pods = self.pods(&selector).await?;
        pods.retain(is_ready);
        pods.sort_by_key(|pod| pod.metadata.creation_timestamp.clone());
        let location = |pod: &Pod| {
            Some(GuestLocation::new(&self.0.config.namespace, &pod.name_any().parse().ok()?, pod))
        };
        let locations = pods.iter().take(MAX_PRECONNECTED).filter_map(location);
        Ok(locations.filter(|location| location.has_guest).collect())
    }
}

/// Keeps streams open until nothing was claimed for a while.
async fn keep_preconnected(backend: Weak<Inner>) {
    while let Some(inner) = backend.upgrade() {
        let mut changes = inner.pod_watch.changes();
        let Some((pool, until)) = inner.preconnected.lull().await else { return };
        if let Err(error) = AgentSandbox(inner.clone()).preconnect(&pool).await {
            tracing::debug!(%error, pool, "preconnecting failed");
        }
        drop(inner);
        // The pool has changed, or the time is over.
        let _ = timeout_at(until, changes.next()).await;
        sleep(PAUSE).await;
    }
}

/// Returns the stream with all that it has received, unless it has ended.
fn unless_ended(mut stream: Box<dyn ByteStream>) -> Option<Box<dyn ByteStream>> {
    let mut said = vec![0; GREETING];
    match stream.read(&mut said).now_or_never() {
        None => Some(stream),
        Some(Ok(count)) if count > 0 => {
            said.truncate(count);
            Some(unread(said, stream))
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test]
    async fn a_greeting_is_kept_and_an_ended_stream_is_not_handed_out() {
        let ahead = Preconnected::default();
        let hold = |uid: &str| {
            let (near, far) = tokio::io::duplex(64);
            ahead.state().held.insert(uid.to_owned(), Box::new(near));
            far
        };
        let (_silent, mut greeting, ended) = (hold("silent"), hold("greeting"), hold("ended"));
        greeting.write_all(b"hello").await.unwrap();
        drop(ended);

        assert!(ahead.take("silent").is_some());
        assert!(ahead.take("ended").is_none() && ahead.take("another").is_none());
        let mut stream = ahead.take("greeting").unwrap();
        greeting.write_all(b" again").await.unwrap();
        let mut heard = [0; 11];
        stream.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"hello again");
        assert!(ahead.take("greeting").is_none(), "a stream is taken once");
    }
}
