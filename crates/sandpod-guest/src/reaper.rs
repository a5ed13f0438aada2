//! Reaps the orphans of a sandbox, which the kernel reparents to its first process.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{WaitId, WaitIdOptions, WaitOptions};
use tokio::signal::unix::{SignalKind, signal};

use crate::process::{Children, EVERY_CHILD, tree};

/// Time between two rounds: one round reaps all orphans that ended meanwhile.
const INTERVAL: Duration = Duration::from_millis(50);

/// Reaps orphans, and leaves the guest's own children to their waiters. Resolves only on failure.
pub(crate) async fn run(children: Arc<Children>) -> io::Result<()> {
    // On a worker thread: the main thread only waits, and would be woken by the end of each command.
    tokio::spawn(reap_forever(children)).await.map_err(io::Error::other)?
}

async fn reap_forever(children: Arc<Children>) -> io::Result<()> {
    let mut ended = signal(SignalKind::child())?;
    loop {
        reap(&children);
        tokio::select! {
            _ = ended.recv() => {}
            () = children.reaped() => {}
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

fn reap(children: &Children) {
    // Most often no zombie is left, because its waiter has reaped it; then `/proc` need not be scanned.
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let ended = ended | WaitIdOptions::from_bits_retain(EVERY_CHILD);
    if !matches!(rustix::process::waitid(WaitId::All, ended), Ok(Some(_))) {
        return;
    }
    let me = rustix::process::getpid().as_raw_nonzero().get();
    let zombies = tree::processes().into_iter().filter(|process| process.is_zombie && process.parent == me);
    children.reap_unknown(zombies.map(|process| process.pid), |pid| {
        // The exit code of an orphan is not needed.
        let _ = rustix::process::waitpid(
            Some(pid),
            WaitOptions::NOHANG | WaitOptions::from_bits_retain(EVERY_CHILD),
        );
    });
}
