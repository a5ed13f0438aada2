//! Warm pools: Pods that are started and checked before a sandbox needs them.
//!
//! A pool is a Lease, `sandpod-pool-<hash>`, and its Pods. The hash covers all that can't be changed in a Pod, so every
//! process with the same configuration shares the pool; what differs from sandbox to sandbox is bound late. The process
//! that holds the Lease ([`leadership`]) keeps the pool full ([`refill`]) as [`plan`] decides, through a [`store`] that
//! is the cluster ([`cluster`]). Every process takes Pods ([`take`]), and a cleanup deletes abandoned pools
//! ([`abandoned`]).

mod abandoned;
mod cluster;
mod leadership;
mod plan;
mod pods;
mod refill;
mod store;
mod take;

#[cfg(test)]
mod model;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use self::cluster::ClusterStore;
use self::plan::State;
pub(super) use self::pods::{POOL_LABEL, STATUS_LABEL};
use self::refill::Refiller;
use self::store::Store as _;
use super::{Inner, Raw, RawConfig, pod};
use crate::config::OWN_PREFIX;
use crate::provider::PoolStatus;
use crate::{Result, SandboxId};

/// The pool of one configuration, as this process uses it.
pub(super) struct Pool {
    store: Arc<ClusterStore>,
    refiller: Arc<Refiller<ClusterStore>>,
    target: usize,
    refilling: Mutex<Refilling>,
}

/// Whether this process refills the pool.
enum Refilling {
    /// Not yet: no sandbox was asked for.
    Later,
    /// A task refills it while it is the leader. Dropping `stop` ends the task.
    Now { task: JoinHandle<()>, stop: oneshot::Sender<()> },
    /// No longer.
    Closed,
}

impl Raw {
    /// Returns the pool, if the configuration has one.
    async fn pool(&self) -> Result<Option<&Pool>> {
        if self.config().warm_pool_size == 0 {
            return Ok(None);
        }
        self.0.pool.get_or_try_init(|| self.open_pool()).await.map(Some)
    }

    async fn open_pool(&self) -> Result<Pool> {
        let guest = self.guest_source(self.0.deliveries.current().delivery).await?;
        let name = format!("{OWN_PREFIX}pool-{}", pod::pool_hash(self.config(), &guest)?);
        let spec_hash = pod::spec_hash(&pod::spec(self.config(), &guest)?)?;
        // A backend of its own: the task must not keep the provider alive that stops it.
        let config = RawConfig { warm_pool_size: 0, ..self.config().clone() };
        let Inner { client, guest, deliveries, image_contents, contact, .. } = &*self.0;
        let shared = (image_contents.clone(), contact.clone());
        let maker = Self::sharing(client.clone(), config, guest.clone(), deliveries.clone(), shared);
        let store = Arc::new(ClusterStore::new(maker, name, spec_hash));
        let target = self.config().warm_pool_size as usize;
        let refiller = Arc::new(Refiller::new(store.clone(), SandboxId::random()?.to_string(), target));
        Ok(Pool { store, refiller, target, refilling: Mutex::new(Refilling::Later) })
    }

    /// Stops refilling the pool. Its Pods stay.
    pub(super) async fn close_pool(&self) {
        let Some(pool) = self.0.pool.get() else { return };
        let before = std::mem::replace(&mut *pool.refilling(), Refilling::Closed);
        if let Refilling::Now { task, stop } = before {
            drop(stop);
            if task.await.is_err() {
                tracing::warn!("refilling a warm pool was interrupted");
            }
        }
    }

    /// Returns the counts of the configuration's pool.
    pub(super) async fn read_pool_status(&self) -> Result<PoolStatus> {
        let Some(pool) = self.pool().await? else { return Ok(PoolStatus::default()) };
        let pods = pool.store.pods().await?;
        let available = pods.iter().filter(|pod| pod.state == State::Warm { ready: true }).count();
        let active = pool.store.count_active().await?;
        Ok(PoolStatus { available, active, total: available + active, target: pool.target })
    }
}

impl Pool {
    /// Starts to refill the pool, unless the provider is closed.
    fn keep_full(&self) {
        let mut refilling = self.refilling();
        if let Refilling::Later = *refilling {
            let (stop, stopped) = oneshot::channel();
            let refiller = self.refiller.clone();
            let task = tokio::spawn(async move {
                // The sender was dropped.
                refiller.run(async { drop(stopped.await) }).await;
            });
            *refilling = Refilling::Now { task, stop };
        }
    }

    fn refilling(&self) -> MutexGuard<'_, Refilling> {
        self.refilling.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
