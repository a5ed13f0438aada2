//! What all connections of a process share: an open stream costs the cluster memory, and opening one costs it work.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::per_process::PerProcess;

/// How many streams a process opens at once, and how many it holds.
const MAX_HANDSHAKES: usize = 16;
const MAX_STREAMS: usize = 256;

/// Of this process.
pub(super) static CROWD: PerProcess<Crowd> = PerProcess::new();

/// Counts the streams of many connections.
pub(super) struct Crowd {
    handshakes: Semaphore,
    streams: Arc<Semaphore>,
    members: Mutex<HashMap<u64, Member>>,
    /// A stream has no calls any more.
    idle: Notify,
    /// Tells what was before what.
    clock: AtomicU64,
}

struct Member {
    used_at: u64,
    /// Closes the stream if it has no calls; whether it did.
    close_if_idle: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl Default for Crowd {
    fn default() -> Self {
        Self::new(MAX_STREAMS)
    }
}

impl Crowd {
    fn new(max_streams: usize) -> Self {
        Self {
            handshakes: Semaphore::new(MAX_HANDSHAKES),
            streams: Arc::new(Semaphore::new(max_streams)),
            members: Mutex::default(),
            idle: Notify::new(),
            clock: AtomicU64::new(0),
        }
    }

    /// Waits for a turn to open a stream; none only when nobody may any more.
    pub(super) async fn handshake(&self) -> Option<SemaphorePermit<'_>> {
        self.handshakes.acquire().await.ok()
    }

    /// A place for one more stream. Where there is none, the stream closes that was without calls for the longest time;
    /// where all have calls, one of them is waited for.
    pub(super) async fn enter(
        self: &Arc<Self>,
        close_if_idle: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Arc<Seat> {
        let permit = loop {
            let idle = self.idle.notified();
            if let Ok(permit) = self.streams.clone().try_acquire_owned() {
                break Some(permit);
            }
            self.make_room();
            tokio::select! {
                permit = self.streams.clone().acquire_owned() => break permit.ok(),
                () = idle => {}
            }
        };
        let number = self.tick();
        let member = Member { used_at: number, close_if_idle: Arc::new(close_if_idle) };
        self.members().insert(number, member);
        Arc::new(Seat { crowd: self.clone(), number, _permit: permit })
    }

    fn make_room(&self) {
        let members = self.members();
        let mut oldest: Vec<_> =
            members.values().map(|member| (member.used_at, member.close_if_idle.clone())).collect();
        // Closing a stream may end in here again.
        drop(members);
        oldest.sort_unstable_by_key(|(used_at, _)| *used_at);
        let _ = oldest.iter().any(|(_, close_if_idle)| close_if_idle());
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    fn members(&self) -> MutexGuard<'_, HashMap<u64, Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream's place in the crowd, until it is dropped.
pub(super) struct Seat {
    crowd: Arc<Crowd>,
    number: u64,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Seat {
    /// The stream is used now.
    pub(super) fn used(&self) {
        let now = self.crowd.tick();
        if let Some(member) = self.crowd.members().get_mut(&self.number) {
            member.used_at = now;
        }
    }

    /// The stream has no calls any more.
    pub(super) fn idle(&self) {
        self.crowd.idle.notify_waiters();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.crowd.members().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use futures::FutureExt as _;

    use super::*;

    /// A stream that ends when it is closed.
    #[derive(Clone, Default)]
    struct Fake(Arc<(AtomicBool, Mutex<Option<Arc<Seat>>>)>);

    impl Fake {
        async fn open(crowd: &Arc<Crowd>) -> Self {
            let fake = Self::default();
            let closing = fake.clone();
            let seat = crowd.enter(move || closing.close_if_idle()).await;
            *fake.0.1.lock().unwrap() = Some(seat);
            fake
        }

        fn close_if_idle(&self) -> bool {
            let idle = !self.0.0.load(Ordering::SeqCst);
            if idle {
                drop(self.0.1.lock().unwrap().take());
            }
            idle
        }

        fn begin(&self) {
            self.0.0.store(true, Ordering::SeqCst);
            self.0.1.lock().unwrap().as_ref().unwrap().used();
        }

        fn end(&self) {
            self.0.0.store(false, Ordering::SeqCst);
            self.0.1.lock().unwrap().as_ref().unwrap().idle();
        }

        fn is_open(&self) -> bool {
            self.0.1.lock().unwrap().is_some()
        }
    }

    #[tokio::test]
    async fn the_stream_closes_that_was_not_used_for_the_longest_time() {
        let crowd = Arc::new(Crowd::new(3));
        let streams = [Fake::open(&crowd).await, Fake::open(&crowd).await, Fake::open(&crowd).await];
        streams[0].begin();
        streams[0].end();

        let next = Fake::open(&crowd).await;

        assert_eq!(streams.map(|stream| stream.is_open()), [true, false, true]);
        assert!(next.is_open());
    }

    #[tokio::test]
    async fn a_stream_with_calls_is_never_closed_but_waited_for() {
        let crowd = Arc::new(Crowd::new(1));
        let busy = Fake::open(&crowd).await;
        busy.begin();
        let mut waiting = Box::pin(Fake::open(&crowd));
        assert!((&mut waiting).now_or_never().is_none());
        assert!(busy.is_open());

        busy.end();

        assert!(waiting.await.is_open());
        assert!(!busy.is_open());
    }
}
