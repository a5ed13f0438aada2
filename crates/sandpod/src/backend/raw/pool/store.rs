//! A pool as those see it who work on it: its Lease, its Pods, and the few things that can be done to them.
//!
//! The cluster is one such store ([`cluster`](super::cluster)); tests have another one, whose time is stopped.

use futures::stream::BoxStream;

use super::plan::PoolPod;
use crate::Result;

/// The Lease of a pool, as it was read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct PoolLease {
    pub(super) uid: String,
    /// Changes whenever the Lease does.
    pub(super) version: String,
    /// Who fills the pool.
    pub(super) holder: Option<String>,
}

/// Every change is conditional on what was read: of two who change the same, one does.
pub(super) trait Store: Send + Sync + 'static {
    /// A Pod that can be made.
    type Prepared: Send;

    /// The Lease, if there is one.
    fn lease(&self) -> impl Future<Output = Result<Option<PoolLease>>> + Send;

    /// Makes the Lease or renews it, for `holder`; none when it is not as it was read any more.
    fn write_lease(
        &self,
        read: Option<&PoolLease>,
        holder: Option<&str>,
    ) -> impl Future<Output = Result<Option<PoolLease>>> + Send;

    /// All Pods of the pool that nobody has, as they are now.
    fn pods(&self) -> impl Future<Output = Result<Vec<PoolPod>>> + Send;

    /// A name that no Pod has.
    fn new_name(&self) -> String;

    /// Sees to it that all is there that a Pod of this name needs, and says how to make it, for the Lease to own.
    fn prepare(&self, name: &str, lease: &PoolLease) -> impl Future<Output = Result<Self::Prepared>> + Send;

    /// Makes a Pod, with one order and nothing before it. That it is there already is no error.
    fn make(&self, prepared: Self::Prepared) -> impl Future<Output = Result<()>> + Send;

    /// Waits until the Pod of this name runs and its guest answers, and lets it be taken then. If it can't it is deleted.
    fn start(&self, name: &str) -> impl Future<Output = Result<()>> + Send;

    /// Deletes a Pod that nobody has; one that has changed since it was read stays.
    fn discard(&self, pod: &PoolPod) -> impl Future<Output = Result<()>> + Send;

    /// That the Lease may have changed.
    fn lease_changes(&self) -> BoxStream<'static, ()>;

    /// That a Pod may have changed.
    fn pod_changes(&self) -> BoxStream<'static, ()>;
}
