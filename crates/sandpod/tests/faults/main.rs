//! Sandboxes under failures of the cluster, the network, their clients and their own commands. The faults are real:
//! the tests kill components of the testbed, so they need it on this machine and for themselves.

mod agent_sandbox;
mod caller;
mod clients;
mod creation;
mod drain;
mod driver;
mod losses;
mod mix;
mod neighbour;
#[path = "../cluster/setup.rs"]
mod setup;

use tokio::sync::{RwLock, RwLockReadGuard};

/// Locked exclusively by tests that break the cluster, shared by all others.
static CLUSTER: RwLock<()> = RwLock::const_new(());

/// Keeps other tests from breaking the cluster while it is held.
async fn calm() -> RwLockReadGuard<'static, ()> {
    CLUSTER.read().await
}

/// Prints what the outcome of a test does not show.
#[expect(clippy::print_stderr, reason = "repeating a run needs its seed and its faults")]
fn say(what: &str) {
    eprintln!("faults: {what}");
}
