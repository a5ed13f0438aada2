//! The guest pushed into a Pod of ours, where the namespace takes no `ConfigMaps`.

use sandpod_kube::exec::PodRef;

use super::Raw;
use crate::Result;
use crate::backend::kubernetes::push::PushTarget;
use crate::config::CONTAINER;

/// Waits in place of `sleep infinity`, until the guest's time is up: the first process of a container can't be ended from
/// inside unless it listens.
pub(super) const WAIT: [&str; 3] = ["sh", "-c", "trap 'exit 0' TERM; sleep infinity & wait"];
/// Where it lies in a Pod of ours: the guest's own volume, which everybody in the Pod can write to.
const DIR: &str = "/run/sandpod/bin";

/// Sees to it that the guest runs in this Pod of ours, and says where it lies.
pub(super) async fn start(raw: &Raw, pod: &PodRef) -> Result<&'static str> {
    let target = PushTarget { client: &raw.0.client, pod, container: CONTAINER, dirs: &[DIR], is_ours: true };
    match target.started().await {
        Some(dir) => Ok(dir),
        None => target.push(raw.guest().await?).await,
    }
}
