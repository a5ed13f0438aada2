//! One watch shared by all callers that wait for objects of one kind, in one namespace, with the same labels.
//!
//! It caches no objects and lists none: a follower reads its object once and then gets its changes. Ten thousand other
//! objects in the namespace cost nothing but their changes.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::core::Status;
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::call::within;

/// How long a watch without followers is kept for the next one.
const LINGER: Duration = Duration::from_secs(10);
/// How long a watch may be silent before it counts as dead. The API server sends a bookmark about once a minute.
const QUIET: Duration = Duration::from_secs(90);
/// The pause before a lost watch is started again, at least and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// An object that can be watched.
pub trait Watched:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
}

impl<K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static> Watched for K {}

/// A watch that runs while it has followers. Clones share it.
///
/// ```no_run
/// # async fn example(client: kube::Client) -> Result<(), kube::Error> {
/// use k8s_openapi::api::core::v1::Pod;
/// use sandpod_kube::watch::SharedWatch;
///
/// let pods: SharedWatch<Pod> = SharedWatch::new(kube::Api::default_namespaced(client), "app=mine");
/// let mut states = pods.follow("pod-1");
/// while states.next().await?.is_none() {} // until it is there
/// # Ok(())
/// # }
/// ```
pub struct SharedWatch<K>(Arc<Inner<K>>);

struct Inner<K> {
    api: Api<K>,
    selector: String,
    followed: Mutex<Followed<K>>,
    /// Counts the followers.
    count: watch::Sender<usize>,
    /// Counts the changes of all objects.
    news: watch::Sender<u64>,
}

struct Followed<K> {
    by_name: HashMap<String, watch::Sender<State<K>>>,
    /// The task runs.
    running: bool,
}

/// The known state of an object.
#[derive(Clone)]
enum State<K> {
    /// Unknown: it has to be read.
    Unknown,
    /// It exists, or not.
    Known(Option<Arc<K>>),
    /// Watching is refused.
    Refused(Box<Status>),
}

/// The states of one object.
pub struct Follower<K> {
    watch: SharedWatch<K>,
    name: String,
    states: watch::Receiver<State<K>>,
    /// The current state was not returned yet.
    due: bool,
}

impl<K> Clone for SharedWatch<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Watched> SharedWatch<K> {
    /// Creates a watch of the objects with these labels. It sends no request yet.
    pub fn new(api: Api<K>, selector: impl Into<String>) -> Self {
        let followed = Mutex::new(Followed { by_name: HashMap::new(), running: false });
        let (count, news) = (watch::Sender::new(0), watch::Sender::new(0));
        Self(Arc::new(Inner { api, selector: selector.into(), followed, count, news }))
    }

    /// Follows the object `name`. Call it inside a tokio runtime.
    #[must_use]
    pub fn follow(&self, name: &str) -> Follower<K> {
        let mut followed = self.0.followed();
        let unknown = || watch::Sender::new(State::Unknown);
        let states = followed.by_name.entry(name.to_owned()).or_insert_with(unknown).subscribe();
        self.join(&mut followed);
        drop(followed);
        Follower { watch: self.clone(), name: name.to_owned(), states, due: true }
    }

    /// Follows changes of any object. Call it inside a tokio runtime.
    #[must_use]
    pub fn changes(&self) -> Changes<K> {
        self.join(&mut self.0.followed());
        Changes { watch: self.clone(), news: self.0.news.subscribe() }
    }

    /// Counts a new follower and starts the task if needed.
    fn join(&self, followed: &mut Followed<K>) {
        self.0.count.send_modify(|count| *count += 1);
        if !std::mem::replace(&mut followed.running, true) {
            tokio::spawn(run(Running { inner: self.0.clone(), done: false }));
        }
    }
}

/// Notifications of changes.
pub struct Changes<K> {
    watch: SharedWatch<K>,
    news: watch::Receiver<u64>,
}

impl<K> Changes<K> {
    /// Returns when an object may have changed since the last call, or since this was created. Several changes may
    /// count as one. Cancel-safe.
    pub async fn next(&mut self) {
        // The watch holds the sender while there are followers, so there always is a change.
        let _ = self.news.changed().await;
    }
}

impl<K> Drop for Changes<K> {
    fn drop(&mut self) {
        self.watch.0.count.send_modify(|count| *count -= 1);
    }
}

impl<K: Watched> Follower<K> {
    /// Returns the next state of the object, or none while it does not exist. Intermediate states may be skipped, the
    /// last never. Fails if the cluster refuses the request. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Arc<K>>, kube::Error> {
        if !self.due {
            // The watch holds the sender while there are followers, so there always is a change.
            let _ = self.states.changed().await;
        }
        self.due = true;
        let state = self.states.borrow_and_update().clone();
        let told = match state {
            State::Known(object) => Ok(object),
            State::Refused(status) => Err(kube::Error::Api(status)),
            State::Unknown => {
                within(self.watch.0.api.get_opt(&self.name)).await.map(|found| found.map(Arc::new))
            }
        };
        self.due = told.is_err();
        told
    }
}

impl<K> Drop for Follower<K> {
    fn drop(&mut self) {
        let mut followed = self.watch.0.followed();
        // Our receiver counts too.
        if followed.by_name.get(&self.name).is_some_and(|states| states.receiver_count() <= 1) {
            followed.by_name.remove(&self.name);
        }
        self.watch.0.count.send_modify(|count| *count -= 1);
    }
}

impl<K> Inner<K> {
    fn followed(&self) -> MutexGuard<'_, Followed<K>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_all(&self, state: &State<K>)
    where
        K: Clone,
    {
        for states in self.followed().by_name.values() {
            states.send_replace(state.clone());
        }
        self.news.send_modify(|count| *count += 1);
    }

    fn tell(&self, name: &str, object: Option<K>) {
        if let Some(states) = self.followed().by_name.get(name) {
            states.send_replace(State::Known(object.map(Arc::new)));
        }
        self.news.send_modify(|count| *count += 1);
    }
}

/// The task. If it is aborted, the next follower starts another.
struct Running<K> {
    inner: Arc<Inner<K>>,
    done: bool,
}

impl<K> Drop for Running<K> {
    fn drop(&mut self) {
        if !self.done {
            self.inner.followed().running = false;
        }
    }
}

async fn run<K: Watched>(mut running: Running<K>) {
    tokio::select! {
        () = watch_for_ever(&running.inner) => {}
        () = deserted(&running.inner) => {}
    }
    running.done = true;
}

/// Returns when there was no follower for a while, and records that.
async fn deserted<K>(inner: &Inner<K>) {
    let mut count = inner.count.subscribe();
    loop {
        // The sender lives as long as this task.
        let _ = count.wait_for(|count| *count == 0).await;
        if timeout(LINGER, count.wait_for(|count| *count > 0)).await.is_err() {
            let mut followed = inner.followed();
            if *inner.count.borrow() == 0 {
                followed.running = false;
                return;
            }
        }
    }
}

async fn watch_for_ever<K: Watched>(inner: &Inner<K>) {
    let mut pause = PAUSES.0;
    loop {
        let begun = Instant::now();
        let Err(lost) = watch_once(inner).await;
        if begun.elapsed() > PAUSES.1 {
            // The watch was established, so earlier failures no longer count.
            pause = PAUSES.0;
        }
        // Other followers get the error with their next read, if it persists.
        if let kube::Error::Api(status) = lost
            && (status.code == 401 || status.code == 403)
        {
            inner.tell_all(&State::Refused(status));
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// Watches until the watch is lost.
async fn watch_once<K: Watched>(inner: &Inner<K>) -> Result<Infallible, kube::Error> {
    let start = ListParams::default().labels(&inner.selector).limit(1);
    let start = within(inner.api.list_metadata(&start)).await?;
    let mut version = start.metadata.resource_version.unwrap_or_default();
    let mut news = None;
    loop {
        let wanted = WatchParams::default().labels(&inner.selector);
        let mut events = within(inner.api.watch(&wanted, &version)).await?.boxed();
        // After the watch is established: followers may have missed earlier changes.
        if news.replace(()).is_none() {
            inner.tell_all(&State::Unknown);
        }
        // A cut connection is silent too. The next watch continues from the known version.
        while let Ok(event) = timeout(QUIET, events.try_next()).await {
            let Some(event) = event? else { break };
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    version = object.resource_version().unwrap_or(version);
                    inner.tell(&object.name_any(), Some(object));
                }
                WatchEvent::Deleted(object) => {
                    version = object.resource_version().unwrap_or(version);
                    inner.tell(&object.name_any(), None);
                }
                WatchEvent::Bookmark(bookmark) => version = bookmark.metadata.resource_version,
                WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
