//! What the targets that speak HTTP/2 share.

use std::future::Future;
use std::time::Duration;

use sandpod_guest::{Guest, Options};
use tokio::io::DuplexStream;
use tokio::time::timeout;

use crate::cell;

/// Nothing waits longer than this for a peer that has said all it will; on a clock that runs ahead
/// whenever everybody waits.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// Runs a future on a runtime of its own, and panics if it hangs.
pub(crate) fn finish(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.expect("a runtime can be made");
    runtime.block_on(async { timeout(PATIENCE, future).await.expect("it hangs") });
}

/// A guest in a cell without anything of an input before.
pub(crate) fn new_guest() -> Guest {
    cell::clean();
    Guest::new(Options::new(format!("{}/state", cell::WORK))).expect("a guest can be made")
}

/// The other end of a stream that a new guest serves.
pub(crate) fn guest() -> DuplexStream {
    let guest = new_guest();
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    tokio::spawn(async move { guest.serve_stream(theirs).await });
    ours
}
