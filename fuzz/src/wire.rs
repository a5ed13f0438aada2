//! Helpers of the targets that use HTTP/2.

use std::future::Future;
use std::time::Duration;

use sandpod_guest::{DisabledKernelFeatures, Guest, Options};
use tokio::io::DuplexStream;
use tokio::time::timeout;

use crate::cell;

/// The longest wait for a peer that has sent everything. The clock is paused, so it advances whenever all tasks wait.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// Runs a future on its own runtime, and panics if it hangs.
pub(crate) fn finish(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.expect("a runtime can be made");
    runtime.block_on(async { timeout(PATIENCE, future).await.expect("it hangs") });
}

/// Returns a guest in a cell without files of earlier inputs.
pub(crate) fn new_guest() -> Guest {
    guest_with_disabled(DisabledKernelFeatures::default())
}

/// Returns a [`new_guest`] as on a kernel without some features.
pub(crate) fn guest_with_disabled(disabled: DisabledKernelFeatures) -> Guest {
    cell::clean();
    let options =
        Options { disabled_kernel_features: disabled, ..Options::new(format!("{}/state", cell::WORK)) };
    Guest::new(options).expect("a guest can be made")
}

/// Returns the client's end of a stream that a new guest serves.
pub(crate) fn guest() -> DuplexStream {
    let guest = new_guest();
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    tokio::spawn(async move { guest.serve_stream(theirs).await });
    ours
}
