//! Pods that wait, started and checked, for somebody to take them.
//!
//! A pool is a Lease, `sandpod-pool-<hash>`, and its Pods. The hash is that of all that can't be changed in a Pod, so every
//! process with the same configuration shares the pool; what differs from sandbox to sandbox is bound late. Whoever
//! holds the Lease ([`tenure`]) keeps the pool full ([`refill`]) by what [`plan`] says, through a [`store`] that is the cluster
//! ([`cluster`]). Anybody takes Pods ([`claim`]), and a cleanup removes pools that nobody keeps any more ([`abandoned`]).

mod abandoned;
mod claim;
mod cluster;
mod plan;
mod pods;
mod refill;
mod store;
mod tenure;

#[cfg(test)]
mod model;

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use self::cluster::ClusterStore;
use self::plan::State;
pub(super) use self::pods::{POOL_LABEL, STATUS_LABEL};
use self::refill::Refiller;
use self::store::Store as _;
use super::{Raw, RawConfig, pod};
use crate::config::OWN_PREFIX;
use crate::provider::PoolStatus;
use crate::{Error, Result, SandboxId};

/// The pool of one configuration, which this process helps to keep full.
pub(super) struct Pool {
    store: Arc<ClusterStore>,
    target: usize,
    refilling: Mutex<Option<Refilling>>,
}

/// The task that fills the pool, while it may.
struct Refilling {
    refiller: Arc<Refiller<ClusterStore>>,
    task: JoinHandle<()>,
    /// Sent, or dropped, it ends the task.
    stop: oneshot::Sender<()>,
}

impl Raw {
    /// The pool, if the configuration wants one. From now on it is kept full.
    pub(super) async fn pool(&self) -> Result<Option<&Pool>> {
        if self.config().warm_pool_size == 0 {
            return Ok(None);
        }
        self.0.pool.get_or_try_init(|| self.open_pool()).await.map(Some)
    }

    async fn open_pool(&self) -> Result<Pool> {
        let names: Vec<_> = self.guest().await?.names().map(str::to_owned).collect();
        let name = format!("{OWN_PREFIX}pool-{}", pod::pool_hash(self.config(), &names)?);
        // One of its own: the task must not keep the provider alive that stops it.
        let config = RawConfig { warm_pool_size: 0, ..self.config().clone() };
        let maker = Self::sharing(self.0.client.clone(), config, self.0.guest.clone(), self.0.seeds.clone());
        let store = Arc::new(ClusterStore::new(maker, name));
        let target = self.config().warm_pool_size as usize;
        let identity = SandboxId::random()?.to_string();
        let refiller = Arc::new(Refiller::new(store.clone(), identity, target));
        let (stop, stopped) = oneshot::channel();
        let running = refiller.clone();
        let task = tokio::spawn(async move {
            running
                .run(async {
                    let _ = stopped.await; // Sent or dropped: nobody needs it any more.
                })
                .await;
        });
        Ok(Pool { store, target, refilling: Mutex::new(Some(Refilling { refiller, task, stop })) })
    }

    /// Stops to keep the pool full. Its Pods stay.
    pub(super) async fn close_pool(&self) {
        let Some(pool) = self.0.pool.get() else { return };
        let refilling = pool.refilling.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Refilling { task, stop, .. }) = refilling {
            drop(stop);
            if task.await.is_err() {
                tracing::warn!("filling a warm pool was interrupted");
            }
        }
    }

    /// How the pool of the configuration is filled.
    pub(super) async fn read_pool_status(&self) -> Result<PoolStatus> {
        let Some(pool) = self.pool().await? else { return Ok(PoolStatus::default()) };
        let pods = pool.store.pods().await?;
        let count = |state: fn(State) -> bool| pods.iter().filter(|pod| state(pod.state)).count();
        let available = count(|state| state == State::Warm { ready: true });
        let active = count(|state| state == State::Active);
        Ok(PoolStatus { available, active, total: available + active, target: pool.target })
    }
}

impl Pool {
    /// Why the last Pod could not be started, if it is so.
    fn trouble(&self) -> Option<Error> {
        let refilling = self.refilling.lock().unwrap_or_else(PoisonError::into_inner);
        refilling.as_ref()?.refiller.trouble.borrow().clone()
    }
}
