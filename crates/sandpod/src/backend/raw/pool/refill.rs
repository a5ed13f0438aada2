//! Refills a pool: of all processes that share it, the leader does so.

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

/// The pause after a failure, at least and at most.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Refills a pool up to `target` while this process is the leader.
pub(super) struct Refiller<S> {
    store: Arc<S>,
    identity: String,
    target: usize,
    /// Requests to create a Pod that are on their way. They are not cancelled, because the API server may carry them
    /// out anyway.
    orders: Arc<Semaphore>,
    /// How many starts have failed since the last success.
    failures: AtomicU32,
    /// Why the last start failed.
    last_error: Mutex<Option<Error>>,
}

impl<S: Store> Refiller<S> {
    pub(super) fn new(store: Arc<S>, identity: String, target: usize) -> Self {
        let orders = Arc::new(Semaphore::new(MAX_STARTING));
        let (failures, last_error) = (AtomicU32::new(0), Mutex::default());
        Self { store, identity, target, orders, failures, last_error }
    }

    /// Refills until `stop` resolves, and then releases the Lease.
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
            // The next leader, which may be this process, must see all Pods that we create.
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

    /// Creates and deletes Pods as the plan says. Never returns.
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

    /// Starts one Pod. After a failure it pauses before it returns.
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
                tracing::warn!(pod = name, %error, "a Pod of a warm pool failed to start");
                self.note(Some(error));
                let failures = self.failures.fetch_add(1, Ordering::Relaxed).min(6);
                sleep((PAUSES.0 * (1 << failures)).min(PAUSES.1)).await;
            }
        }
        name
    }

    /// Returns why the last Pod failed to start, if it did.
    pub(super) fn last_error(&self) -> Option<Error> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, last_error: Option<Error>) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = last_error;
    }

    /// Creates a Pod in a task, so that the request is completed also if this call is cancelled.
    async fn order(&self, name: String, leadership: &Leadership) -> Result<()> {
        let turn = self.orders.clone().acquire_owned().await.map_err(|_| over())?;
        if leadership.is_over() {
            return Err(over());
        }
        let (store, leadership) = (self.store.clone(), leadership.clone());
        let making = tokio::spawn(async move {
            let _turn = turn;
            let prepared = store.prepare(&name, &leadership.lease()).await?;
            // Preparing may have taken longer than this process is the leader.
            if leadership.is_over() {
                return Err(over());
            }
            store.make(prepared).await
        });
        making.await.map_err(super::super::interrupted)?
    }
}

/// The error if another process refills the pool.
fn over() -> Error {
    Error::new(ErrorKind::Unavailable, "The pool's Lease is lost.", "Another process refills the pool now.")
}
