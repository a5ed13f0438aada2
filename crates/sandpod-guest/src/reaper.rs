//! Takes in the orphans of a sandbox: who ends with nobody to wait for it falls to its first process.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{WaitId, WaitIdOptions, WaitOptions};
use tokio::signal::unix::{SignalKind, signal};

use crate::process::{Children, EVERY_CHILD, tree};

/// Many end at once; one look is enough for all of them.
const PAUSE: Duration = Duration::from_millis(50);

/// Reaps orphans, and leaves the guest's own children to who waits for them. Resolves only if it can't.
pub(crate) async fn run(children: Arc<Children>) -> io::Result<()> {
    // Where all else is done: the thread that only waits for that would be woken with every command's end.
    tokio::spawn(reap_for_ever(children)).await.map_err(io::Error::other)?
}

async fn reap_for_ever(children: Arc<Children>) -> io::Result<()> {
    let mut ended = signal(SignalKind::child())?;
    loop {
        reap(&children);
        tokio::select! {
            _ = ended.recv() => {}
            () = children.left() => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn reap(children: &Children) {
    // Most often whoever ended has been waited for by now, and nobody has to be looked for.
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let ended = ended | WaitIdOptions::from_bits_retain(EVERY_CHILD);
    if !matches!(rustix::process::waitid(WaitId::All, ended), Ok(Some(_))) {
        return;
    }
    let me = rustix::process::getpid().as_raw_nonzero().get();
    let zombies = tree::processes().into_iter().filter(|process| process.is_zombie && process.parent == me);
    children.without_known(zombies.map(|process| process.pid), |pid| {
        // An orphan's exit code is of interest to nobody.
        let _ = rustix::process::waitpid(
            Some(pid),
            WaitOptions::NOHANG | WaitOptions::from_bits_retain(EVERY_CHILD),
        );
    });
}
