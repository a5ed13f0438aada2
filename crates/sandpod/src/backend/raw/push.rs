//! Pushes the guest into a Pod of ours, where the namespace refuses `ConfigMaps`.

use sandpod_kube::exec::PodRef;

use super::Raw;
use crate::Result;
use crate::backend::kubernetes::push::PushTarget;
use crate::config::CONTAINER;

/// The container's command in place of `sleep infinity`. It handles SIGTERM, which ends it when the guest exits: a
/// process that is PID 1 ignores signals without a handler.
pub(super) const WAIT: [&str; 3] = ["sh", "-c", "trap 'exit 0' TERM; sleep infinity & wait"];
/// The guest's directory in a Pod of ours, on its own volume. Every process in the Pod can write to it.
const DIR: &str = "/run/sandpod/bin";

/// Pushes and starts the guest in this Pod unless it runs, and returns its directory.
pub(super) async fn start(raw: &Raw, pod: &PodRef) -> Result<&'static str> {
    let target = PushTarget { client: &raw.0.client, pod, container: CONTAINER, dirs: &[DIR], is_ours: true };
    match target.started().await {
        Some(dir) => Ok(dir),
        None => target.push(raw.guest().await?).await,
    }
}
