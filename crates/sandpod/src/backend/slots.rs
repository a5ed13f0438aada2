//! A limit on the number of sandboxes that a process works at, to protect the API server and this machine.
//!
//! Calls to the API server and binding a guest need a [`Slot`]. Waiting for a Pod to start does not, so a slow start
//! delays no other sandbox.

use std::sync::Arc;

use sandpod_client::ProcessLocal;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{Error, ErrorKind, Result};

/// The limit for all providers of a process together.
const MAX_AT_ONCE: usize = 16;
static SLOTS: ProcessLocal<Slots> = ProcessLocal::new();

struct Slots(Arc<Semaphore>);

impl Default for Slots {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_AT_ONCE)))
    }
}

impl Slots {
    async fn slot(&self) -> Result<Slot> {
        self.0.clone().acquire_owned().await.map(Slot).map_err(|_| {
            Error::new(ErrorKind::Internal, "The limiter of sandbox creations is closed.", "Report this.")
        })
    }
}

/// The permission to work at one sandbox, until it is dropped. A task with a slot must not wait for a second one.
pub(crate) struct Slot(#[expect(dead_code, reason = "it is held")] OwnedSemaphorePermit);

/// Waits for a free slot, first come, first served.
pub(crate) async fn slot() -> Result<Slot> {
    SLOTS.get().slot().await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use futures::future::join_all;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn at_most_sixteen_sandboxes_are_worked_at_concurrently() {
        // A separate limiter, because other tests use that of the process.
        let slots = Slots::default();
        let (working, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = |_| async {
            let _slot = slots.slot().await.unwrap();
            most.fetch_max(working.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(1)).await;
            working.fetch_sub(1, Ordering::SeqCst);
        };
        join_all((0..100).map(work)).await;
        assert_eq!(most.into_inner(), MAX_AT_ONCE);
    }
}
