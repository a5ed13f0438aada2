//! Who fills a pool: the one who holds its Lease, and nobody else.
//!
//! A holder renews the Lease three times within its duration, and gives up earlier than another may take it. Clocks of
//! different machines are never compared: who waits counts how long the Lease has not changed before its own eyes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use tokio::time::{Instant, sleep, timeout_at};

use super::store::{PoolLease, Store};

/// After so long without a change another takes the Lease.
pub(super) const DURATION: Duration = Duration::from_secs(15);
/// So often it is renewed.
const PERIOD: Duration = Duration::from_secs(5);
/// A holder that could not renew it for so long gives up, while nobody else has it yet.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long it takes until what failed is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// That the Lease is ours, until it is over.
#[derive(Clone)]
pub(super) struct Leadership(Arc<Mutex<Held>>);

struct Held {
    lease: PoolLease,
    until: Instant,
}

impl Leadership {
    /// Waits until the Lease is ours.
    pub(super) async fn acquire<S: Store>(store: &S, identity: &str) -> Self {
        let mut changes = store.lease_changes();
        let mut seen: Option<(String, Instant)> = None;
        loop {
            let lease = match store.lease().await {
                Ok(lease) => lease,
                Err(error) => {
                    tracing::warn!(%error, "the Lease of a warm pool can't be read");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            let holder = lease.as_ref().and_then(|lease| lease.holder.as_deref());
            let is_free = holder.is_none_or(|holder| holder == identity);
            let version = lease.as_ref().map(|lease| lease.version.clone()).unwrap_or_default();
            let since = match &seen {
                Some((same, since)) if *same == version => *since,
                _ => seen.insert((version, Instant::now())).1,
            };
            if !is_free && Instant::now() < since + DURATION {
                let _ = timeout_at(since + DURATION, changes.next()).await;
                continue;
            }
            let begin = Instant::now();
            match store.write_lease(lease.as_ref(), Some(identity)).await {
                Ok(Some(lease)) => {
                    return Self(Arc::new(Mutex::new(Held { lease, until: begin + DEADLINE })));
                }
                Ok(None) => {} // Another was quicker.
                Err(error) => {
                    tracing::warn!(%error, "the Lease of a warm pool can't be taken");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// Renews the Lease, and resolves when it is lost.
    pub(super) async fn renew<S: Store>(&self, store: &S, identity: &str) {
        let mut pause = PERIOD;
        loop {
            sleep(pause).await;
            if self.is_over() {
                return;
            }
            let (lease, begin) = (self.lease(), Instant::now());
            let renewing = async {
                match store.write_lease(Some(&lease), Some(identity)).await? {
                    Some(renewed) => Ok(Some(renewed)),
                    // It has changed: by another, or by an order of ours whose answer was lost.
                    None => store.lease().await,
                }
            };
            let until = self.held().until;
            match timeout_at(until, renewing).await {
                Ok(Ok(Some(lease))) if lease.holder.as_deref() == Some(identity) => {
                    *self.held() = Held { lease, until: begin + DEADLINE };
                    pause = PERIOD;
                }
                Ok(Err(error)) => {
                    tracing::debug!(%error, "the Lease of a warm pool is not renewed: once more");
                    pause = PAUSE;
                }
                Ok(Ok(_)) | Err(_) => return self.end(),
            }
        }
    }

    /// Gives the Lease back, so that nobody has to wait for its end.
    pub(super) async fn release<S: Store>(&self, store: &S, identity: &str) {
        let lease = self.lease();
        self.end();
        let releasing = async {
            if store.write_lease(Some(&lease), None).await?.is_some() {
                return Ok(());
            }
            // It has changed: by another, or by a renewal of ours that nobody waited for any more.
            match store.lease().await?.filter(|now| now.holder.as_deref() == Some(identity)) {
                Some(renewed) => store.write_lease(Some(&renewed), None).await.map(drop),
                None => Ok(()),
            }
        };
        if let Err(error) = releasing.await {
            tracing::debug!(%error, "the Lease of a warm pool is not given back: it ends by itself");
        }
    }

    /// Whether another may have the Lease. Also true when time has passed and nobody has noticed yet, as after a machine
    /// was suspended.
    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.held().until
    }

    /// The Lease, as it was written last.
    pub(super) fn lease(&self) -> PoolLease {
        self.held().lease.clone()
    }

    fn end(&self) {
        self.held().until = Instant::now();
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
