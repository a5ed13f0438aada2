//! What sandboxes do when the cluster, the network, their clients and their own commands fail them. The faults are real:
//! components of the testbed are killed, so these tests need it on this machine and run while nobody else uses it.

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

/// Held alone by who breaks the cluster, and shared by all others.
static CLUSTER: RwLock<()> = RwLock::const_new(());

/// Nobody breaks the cluster as long as this is held.
async fn calm() -> RwLockReadGuard<'static, ()> {
    CLUSTER.read().await
}

/// Tells whoever runs the tests what can't be seen from their outcome.
#[expect(clippy::print_stderr, reason = "a run can be repeated only by who knows its seed and its faults")]
fn say(what: &str) {
    eprintln!("faults: {what}");
}
