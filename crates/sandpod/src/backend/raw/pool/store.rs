//! The operations on a pool's Lease and Pods.
//!
//! The implementation on the cluster is [`cluster`](super::cluster). Tests have one in memory, in paused time.

use futures::stream::BoxStream;

use super::plan::PoolPod;
use crate::Result;

/// The Lease of a pool, as it was read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct PoolLease {
    pub(super) uid: String,
    /// Changes with every change of the Lease.
    pub(super) version: String,
    /// The leader.
    pub(super) holder: Option<String>,
}

/// Every change is conditional on what was read: of two that change the same object, one succeeds.
pub(super) trait Store: Send + Sync + 'static {
    /// A Pod that is ready to be created.
    type Prepared: Send;

    /// Returns the Lease, if it exists.
    fn lease(&self) -> impl Future<Output = Result<Option<PoolLease>>> + Send;

    /// Creates or renews the Lease for `holder`. Returns none if it has changed since it was read.
    fn write_lease(
        &self,
        read: Option<&PoolLease>,
        holder: Option<&str>,
    ) -> impl Future<Output = Result<Option<PoolLease>>> + Send;

    /// Returns the Pods of the pool that are not taken.
    fn pods(&self) -> impl Future<Output = Result<Vec<PoolPod>>> + Send;

    /// Returns a new name for a Pod.
    fn new_name(&self) -> String;

    /// Creates what a Pod of this name needs, and returns the Pod, which the Lease will own.
    fn prepare(&self, name: &str, lease: &PoolLease) -> impl Future<Output = Result<Self::Prepared>> + Send;

    /// Creates a Pod by a single request. An existing Pod is no error.
    fn make(&self, prepared: Self::Prepared) -> impl Future<Output = Result<()>> + Send;

    /// Waits until the Pod of this name runs and its guest answers, and then marks it as warm. A Pod that fails is
    /// deleted.
    fn start(&self, name: &str) -> impl Future<Output = Result<()>> + Send;

    /// Deletes a Pod that is not taken. A Pod that has changed since it was read stays.
    fn discard(&self, pod: &PoolPod) -> impl Future<Output = Result<()>> + Send;

    /// Yields when the Lease may have changed.
    fn lease_changes(&self) -> BoxStream<'static, ()>;

    /// Yields when a Pod may have changed.
    fn pod_changes(&self) -> BoxStream<'static, ()>;
}
