//! A provider for a test.

use std::time::Duration;

use sandpod::{ExecuteOptions, Provider, RawConfig, SandboxHandle};
use sandpod_testbed::{Namespace, PATIENCE};
use tokio::time::timeout;

pub(crate) const BUSYBOX: &str = "sandpod.test/busybox:1";

/// A configuration for small Pods of `image`.
pub(crate) fn config(namespace: &Namespace, image: &str) -> RawConfig {
    RawConfig {
        namespace: namespace.name.clone(),
        image: image.to_owned(),
        cpu_request: "1m".to_owned(),
        memory_request: "16Mi".to_owned(),
        memory_limit: "256Mi".to_owned(),
        startup_timeout_seconds: PATIENCE.as_secs(),
        ..RawConfig::default()
    }
}

/// A provider with the rights of the raw role.
pub(crate) async fn provider(namespace: &Namespace, config: RawConfig) -> Provider {
    Provider::with_client(namespace.raw().await, config).expect("the configuration is usable")
}

/// What a command line prints.
pub(crate) async fn execute(handle: &SandboxHandle, line: &str) -> String {
    let options = ExecuteOptions { timeout: Some(Duration::from_secs(20)), ..ExecuteOptions::default() };
    let executed =
        handle.sandbox.execute(line, options).await.unwrap_or_else(|error| panic!("{line}: {error}"));
    String::from_utf8_lossy(&executed.output).into_owned()
}

/// Fails instead of hanging.
pub(crate) fn soon<T>(what: &str, future: impl Future<Output = T>) -> impl Future<Output = T> {
    let future = Box::pin(future);
    async move { timeout(2 * PATIENCE, future).await.unwrap_or_else(|_| panic!("{what} hangs")) }
}
