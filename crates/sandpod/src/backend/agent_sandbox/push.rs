//! Our guest in a Pod whose template did not bring it: pushed through exec, beside what runs there and goes on.

use sandpod_client::DialError;
use sandpod_kube::exec;
use tokio::io::AsyncReadExt as _;
use tokio::sync::OnceCell;

use super::AgentSandbox;
use super::reach::{Spot, not_opened};
use crate::Result;
use crate::backend::raw::guest::GuestMaps;
use crate::backend::raw::push::Target;

/// Where it may lie: somebody else's container has no volume for it.
const DIRS: [&str; 4] =
    ["/run/sandpod/bin", "/tmp/.sandpod/bin", "/workspace/.sandpod/bin", "/app/.sandpod/bin"];

/// The longest name of a machine that is heard.
const MAX_MACHINE: u64 = 64;

/// The guests that were packed, by architecture.
#[derive(Default)]
pub(super) struct Guests {
    amd64: OnceCell<GuestMaps>,
    arm64: OnceCell<GuestMaps>,
}

impl AgentSandbox {
    /// Sees to it that our guest runs in a container that did not come with it, and says where it lies.
    pub(super) async fn push_guest(&self, spot: &Spot) -> Result<&'static str, DialError> {
        let target = Target {
            client: &self.0.client,
            pod: &spot.pod,
            container: &spot.container,
            dirs: &DIRS,
            is_ours: false,
        };
        // Who has no right to exec hears it from this.
        let machine =
            exec::stream(target.client, target.pod, target.container, ["uname", "-m"].map(str::to_owned));
        let machine = machine.await.map_err(|error| not_opened(spot, error))?;
        if let Some(dir) = target.started().await {
            return Ok(dir);
        }
        let mut said = Vec::new();
        // An image without uname says nothing; then it is what most are.
        let _ = machine.take(MAX_MACHINE).read_to_end(&mut said).await;
        let pushed = match self.packed_guest(&said).await {
            Ok(guest) => target.push(guest).await,
            Err(error) => Err(error),
        };
        pushed.map_err(|error| DialError::Denied(error.message().to_owned()))
    }

    async fn packed_guest(&self, machine: &[u8]) -> Result<&GuestMaps> {
        let guests = &self.0.guests;
        let (arch, packed) = match machine.trim_ascii() {
            b"aarch64" => ("arm64", &guests.arm64),
            _ => ("amd64", &guests.amd64),
        };
        packed.get_or_try_init(|| GuestMaps::load(arch, self.0.config.package_dir.as_deref())).await
    }
}
