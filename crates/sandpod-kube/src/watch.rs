//! One watch for all who wait for objects of one kind, in one namespace, with the same labels.
//!
//! It keeps no objects and lists none: whoever begins to wait reads the one object, and then hears of its changes. So a
//! namespace with ten thousand others costs nothing but what changes there meanwhile.

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

/// How long a watch goes on that nobody needs: the next one may come soon.
const LINGER: Duration = Duration::from_secs(10);
/// How long a watch may say nothing until it is taken for dead: about once a minute the API server says how far it is.
const QUIET: Duration = Duration::from_secs(90);
/// How long it takes until a lost watch is begun again, at least and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// An object that can be watched.
pub trait Watched:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
}

impl<K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static> Watched for K {}

/// A watch that is there while somebody waits. Clones are the same.
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
    /// Counts those who follow.
    count: watch::Sender<usize>,
    /// Counts what happened to any of the objects.
    news: watch::Sender<u64>,
}

struct Followed<K> {
    by_name: HashMap<String, watch::Sender<State<K>>>,
    /// The task is there.
    running: bool,
}

/// What is known of an object.
#[derive(Clone)]
enum State<K> {
    /// It has to be read.
    Unknown,
    /// It is, or is not, there.
    Known(Option<Arc<K>>),
    /// Nobody may watch it.
    Refused(Box<Status>),
}

/// The states of one object, as they come.
pub struct Follower<K> {
    watch: SharedWatch<K>,
    name: String,
    states: watch::Receiver<State<K>>,
    /// The current state is still to be told.
    due: bool,
}

impl<K> Clone for SharedWatch<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Watched> SharedWatch<K> {
    /// A watch of the objects that `selector` finds by their labels. It asks the cluster nothing yet.
    pub fn new(api: Api<K>, selector: impl Into<String>) -> Self {
        let followed = Mutex::new(Followed { by_name: HashMap::new(), running: false });
        let (count, news) = (watch::Sender::new(0), watch::Sender::new(0));
        Self(Arc::new(Inner { api, selector: selector.into(), followed, count, news }))
    }

    /// The states of the object `name`. Call it inside a tokio runtime.
    #[must_use]
    pub fn follow(&self, name: &str) -> Follower<K> {
        let mut followed = self.0.followed();
        let unknown = || watch::Sender::new(State::Unknown);
        let states = followed.by_name.entry(name.to_owned()).or_insert_with(unknown).subscribe();
        self.join(&mut followed);
        drop(followed);
        Follower { watch: self.clone(), name: name.to_owned(), states, due: true }
    }

    /// Whether something has changed, whichever object it was. Call it inside a tokio runtime.
    #[must_use]
    pub fn changes(&self) -> Changes<K> {
        self.join(&mut self.0.followed());
        Changes { watch: self.clone(), news: self.0.news.subscribe() }
    }

    /// One more follows.
    fn join(&self, followed: &mut Followed<K>) {
        self.0.count.send_modify(|count| *count += 1);
        if !std::mem::replace(&mut followed.running, true) {
            tokio::spawn(run(Running { inner: self.0.clone(), done: false }));
        }
    }
}

/// That something has changed, as it comes.
pub struct Changes<K> {
    watch: SharedWatch<K>,
    news: watch::Receiver<u64>,
}

impl<K> Changes<K> {
    /// Resolves when something may have changed since this was asked last, or begun. Of many changes some are told as
    /// one. Cancel-safe.
    pub async fn next(&mut self) {
        // The watch holds the other end for as long as we follow, so there always is a change.
        let _ = self.news.changed().await;
    }
}

impl<K> Drop for Changes<K> {
    fn drop(&mut self) {
        self.watch.0.count.send_modify(|count| *count -= 1);
    }
}

impl<K: Watched> Follower<K> {
    /// The object, or none while there is none. Of states that follow each other quickly some are left out, never the
    /// last one. An error if the cluster refuses to tell. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Arc<K>>, kube::Error> {
        if !self.due {
            // The watch holds the other end for as long as we follow, so there always is a change.
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
        // Ours is one of the receivers.
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

/// The task; if it is ended from outside, the next one who follows starts another.
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

/// Resolves when nobody has followed for a while, and notes that.
async fn deserted<K>(inner: &Inner<K>) {
    let mut count = inner.count.subscribe();
    loop {
        // The sender lives as long as we do.
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
            // It stood, and what was before it is over.
            pause = PAUSES.0;
        }
        // Others are told by their next reading, if it is still so then.
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
        // Once the watch is there: whoever waits may have missed what was before it.
        if news.replace(()).is_none() {
            inner.tell_all(&State::Unknown);
        }
        // A path that is cut without a word says nothing either. What came meanwhile follows the version that we know.
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
