//! Calls to the API server with a time limit.

use std::time::Duration;

use tokio::time::timeout;

/// The time limit of one call. kube itself has none.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Limits the time of a call to [`LIMIT`].
///
/// ```no_run
/// # async fn example(pods: kube::Api<k8s_openapi::api::core::v1::Pod>) -> kube::Result<()> {
/// let pod = sandpod_kube::call::within(pods.get("pod-1")).await?;
/// # Ok(())
/// # }
/// ```
pub async fn within<T>(call: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    let slow = || kube::Error::Service(format!("no answer within {LIMIT:?}").into());
    timeout(LIMIT, call).await.unwrap_or_else(|_| Err(slow()))
}
