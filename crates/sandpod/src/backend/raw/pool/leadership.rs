//! Leader election: the process that holds the Lease of a pool refills it.
//!
//! The leader renews the Lease three times within its duration, and gives up before another process may take it. Clocks
//! of different machines are never compared: a candidate measures by its own clock how long the Lease has not changed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use tokio::time::{Instant, sleep, timeout_at};

use super::store::{PoolLease, Store};

/// How long the Lease must not change before another process takes it.
pub(super) const DURATION: Duration = Duration::from_secs(15);
/// The interval of renewals.
const PERIOD: Duration = Duration::from_secs(5);
/// How long after the last renewal the leader gives up. It is shorter than [`DURATION`].
const DEADLINE: Duration = Duration::from_secs(10);
/// The pause after a failed request.
const PAUSE: Duration = Duration::from_secs(1);

/// The right to refill the pool, until it is over.
#[derive(Clone)]
pub(super) struct Leadership(Arc<Mutex<Held>>);

struct Held {
    lease: PoolLease,
    until: Instant,
}

impl Leadership {
    /// Waits until the Lease is free and takes it.
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

    /// Renews the Lease, and returns when it is lost.
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
                    // It was changed by another process, or by a request of ours whose response was lost.
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
                    tracing::debug!(%error, "renewing the Lease of a warm pool failed: retrying");
                    pause = PAUSE;
                }
                Ok(Ok(_)) | Err(_) => return self.end(),
            }
        }
    }

    /// Releases the Lease, so that the next leader need not wait.
    pub(super) async fn release<S: Store>(&self, store: &S, identity: &str) {
        let lease = self.lease();
        self.end();
        let releasing = async {
            if store.write_lease(Some(&lease), None).await?.is_some() {
                return Ok(());
            }
            // It was changed by another process, or by a renewal of ours that was abandoned.
            match store.lease().await?.filter(|now| now.holder.as_deref() == Some(identity)) {
                Some(renewed) => store.write_lease(Some(&renewed), None).await.map(drop),
                None => Ok(()),
            }
        };
        if let Err(error) = releasing.await {
            tracing::debug!(%error, "the Lease of a warm pool could not be released: it expires by itself");
        }
    }

    /// Whether another process may have the Lease. Also true if no renewal was due yet but the time is over, as after a
    /// machine was suspended.
    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.held().until
    }

    /// Returns the Lease as it was written last.
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
