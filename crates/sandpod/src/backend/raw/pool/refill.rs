//! Keeping a pool full: one refiller among all processes that share the pool.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::leadership::Leadership;
use super::plan::{MAX_STARTING, plan};
use super::store::Store;
use crate::{Error, ErrorKind, Result};

/// How long it takes until what failed is tried again, at least and at most.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Fills a pool up to `target` while its Lease is ours.
pub(super) struct Refiller<S> {
    store: Arc<S>,
    identity: String,
    target: usize,
    /// Orders to make a Pod that are on their way. They are not given up: an order that nobody waits for is still obeyed.
    orders: Arc<Semaphore>,
    /// How often starting a Pod has failed since one did not.
    failures: AtomicU32,
    /// Why the last one failed.
    last_error: Mutex<Option<Error>>,
}

impl<S: Store> Refiller<S> {
    pub(super) fn new(store: Arc<S>, identity: String, target: usize) -> Self {
        let orders = Arc::new(Semaphore::new(MAX_STARTING));
        let (failures, last_error) = (AtomicU32::new(0), Mutex::default());
        Self { store, identity, target, orders, failures, last_error }
    }

    /// Works until `stop` resolves, and gives the Lease back then.
    pub(super) async fn run(&self, stop: impl Future<Output = ()>) {
        tokio::pin!(stop);
        loop {
            let leadership = tokio::select! {
                biased;
                leadership = Leadership::acquire(&*self.store, &self.identity) => leadership,
                () = &mut stop => return,
            };
            let stopped = tokio::select! {
                biased; // Who has lost the Lease must not do one thing more.
                () = leadership.renew(&*self.store, &self.identity) => false,
                () = self.fill(&leadership) => false,
                () = &mut stop => true,
            };
            // Whoever fills the pool next, we or another, must see all Pods that we make.
            self.orders_done().await;
            if stopped {
                return leadership.release(&*self.store, &self.identity).await;
            }
        }
    }

    async fn orders_done(&self) {
        let all = u32::try_from(MAX_STARTING).unwrap_or(u32::MAX);
        drop(self.orders.acquire_many(all).await);
    }

    /// Does what is missing, for ever.
    async fn fill(&self, leadership: &Leadership) {
        let mut changes = self.store.pod_changes();
        let mut at_work = BTreeSet::new();
        let mut works = FuturesUnordered::new();
        loop {
            match self.store.pods().await {
                Ok(pods) => {
                    let plan = plan(&pods, self.target, &at_work);
                    for pod in &plan.discard {
                        if let Err(error) = self.store.discard(pod).await {
                            tracing::warn!(pod = pod.name, %error, "a Pod of a warm pool can't be deleted");
                        }
                    }
                    let new = (0..plan.make).map(|_| (self.store.new_name(), true));
                    for (name, is_new) in plan.adopt.into_iter().map(|pod| (pod.name, false)).chain(new) {
                        at_work.insert(name.clone());
                        works.push(self.work(name, is_new, leadership));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "the Pods of a warm pool can't be listed");
                    sleep(PAUSES.0).await;
                    continue;
                }
            }
            tokio::select! {
                biased;
                Some(name) = works.next() => {
                    at_work.remove(&name);
                }
                _ = changes.next() => {}
            }
        }
    }

    /// Brings one Pod to where it can be taken. After a failure it takes a while, so that failing is not done in a hurry.
    async fn work(&self, name: String, is_new: bool, leadership: &Leadership) -> String {
        let begun = if is_new { self.order(name.clone(), leadership).await } else { Ok(()) };
        let worked = match begun {
            Ok(()) => self.store.start(&name).await,
            Err(error) => Err(error),
        };
        match worked {
            Ok(()) => {
                self.failures.store(0, Ordering::Relaxed);
                self.note(None);
            }
            Err(error) => {
                tracing::warn!(pod = name, %error, "a Pod of a warm pool does not start");
                self.note(Some(error));
                let failures = self.failures.fetch_add(1, Ordering::Relaxed).min(6);
                sleep((PAUSES.0 * (1 << failures)).min(PAUSES.1)).await;
            }
        }
        name
    }

    /// Why the last Pod could not be started, if it is so.
    pub(super) fn last_error(&self) -> Option<Error> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, last_error: Option<Error>) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = last_error;
    }

    /// Lets a Pod be made, in a task: when we are stopped meanwhile, it is known when the order is over.
    async fn order(&self, name: String, leadership: &Leadership) -> Result<()> {
        let turn = self.orders.clone().acquire_owned().await.map_err(|_| over())?;
        if leadership.is_over() {
            return Err(over());
        }
        let (store, leadership) = (self.store.clone(), leadership.clone());
        let making = tokio::spawn(async move {
            let _turn = turn;
            let prepared = store.prepare(&name, &leadership.lease()).await?;
            // Preparing may have taken longer than the Lease is ours.
            if leadership.is_over() {
                return Err(over());
            }
            store.make(prepared).await
        });
        making.await.map_err(super::super::interrupted)?
    }
}

/// Somebody else fills the pool.
fn over() -> Error {
    Error::new(ErrorKind::Unavailable, "The pool's Lease is lost.", "Somebody else fills the pool now.")
}
