//! Limits on the streams of all connections of a process: an open stream uses memory in the cluster, and opening one takes
//! work there.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::process_local::ProcessLocal;

/// How many streams a process opens at once, and how many it holds.
const MAX_HANDSHAKES: usize = 16;
const MAX_STREAMS: usize = 256;

/// The limits of this process.
pub(super) static STREAM_LIMITS: ProcessLocal<StreamLimits> = ProcessLocal::new();

/// Counts and limits the streams of all connections.
pub(super) struct StreamLimits {
    handshakes: Semaphore,
    streams: Arc<Semaphore>,
    entries: Mutex<HashMap<u64, Entry>>,
    /// Notified when a stream has no calls left.
    idle: Notify,
    /// Orders the uses of streams.
    clock: AtomicU64,
}

struct Entry {
    used_at: u64,
    /// Closes the stream if it has no calls. Returns whether it was closed.
    close_if_idle: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl Default for StreamLimits {
    fn default() -> Self {
        Self::new(MAX_STREAMS)
    }
}

impl StreamLimits {
    fn new(max_streams: usize) -> Self {
        Self {
            handshakes: Semaphore::new(MAX_HANDSHAKES),
            streams: Arc::new(Semaphore::new(max_streams)),
            entries: Mutex::default(),
            idle: Notify::new(),
            clock: AtomicU64::new(0),
        }
    }

    /// Waits for a permit to open a stream.
    pub(super) async fn handshake(&self) -> Option<SemaphorePermit<'_>> {
        self.handshakes.acquire().await.ok()
    }

    /// Acquires a slot for one more stream. If all slots are taken, this closes the stream that was idle for the longest time; if
    /// all streams have calls, it waits.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        close_if_idle: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Arc<StreamSlot> {
        let permit = loop {
            let idle = self.idle.notified();
            if let Ok(permit) = self.streams.clone().try_acquire_owned() {
                break Some(permit);
            }
            self.close_oldest_idle();
            tokio::select! {
                permit = self.streams.clone().acquire_owned() => break permit.ok(),
                () = idle => {}
            }
        };
        let number = self.next_number();
        let entry = Entry { used_at: number, close_if_idle: Arc::new(close_if_idle) };
        self.entries().insert(number, entry);
        Arc::new(StreamSlot { stream_limits: self.clone(), number, _permit: permit })
    }

    fn close_oldest_idle(&self) {
        let entries = self.entries();
        let mut oldest: Vec<_> =
            entries.values().map(|entry| (entry.used_at, entry.close_if_idle.clone())).collect();
        // Closing a stream may lock the entries again.
        drop(entries);
        oldest.sort_unstable_by_key(|(used_at, _)| *used_at);
        let _ = oldest.iter().any(|(_, close_if_idle)| close_if_idle());
    }

    fn next_number(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream's slot, released when dropped.
pub(super) struct StreamSlot {
    stream_limits: Arc<StreamLimits>,
    number: u64,
    _permit: Option<OwnedSemaphorePermit>,
}

impl StreamSlot {
    /// Records that the stream is used now.
    pub(super) fn used(&self) {
        let now = self.stream_limits.next_number();
        if let Some(entry) = self.stream_limits.entries().get_mut(&self.number) {
            entry.used_at = now;
        }
    }

    /// Reports that the stream has no calls left.
    pub(super) fn idle(&self) {
        self.stream_limits.idle.notify_waiters();
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.stream_limits.entries().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use futures::FutureExt as _;

    use super::*;

    /// A stream that ends when it is closed.
    #[derive(Clone, Default)]
    struct Fake(Arc<(AtomicBool, Mutex<Option<Arc<StreamSlot>>>)>);

    impl Fake {
        async fn open(stream_limits: &Arc<StreamLimits>) -> Self {
            let fake = Self::default();
            let closing = fake.clone();
            let stream_slot = stream_limits.acquire(move || closing.close_if_idle()).await;
            *fake.0.1.lock().unwrap() = Some(stream_slot);
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
    async fn least_recently_used_stream_is_closed() {
        let stream_limits = Arc::new(StreamLimits::new(3));
        let streams = [
            Fake::open(&stream_limits).await,
            Fake::open(&stream_limits).await,
            Fake::open(&stream_limits).await,
        ];
        streams[0].begin();
        streams[0].end();

        let next = Fake::open(&stream_limits).await;

        assert_eq!(streams.map(|stream| stream.is_open()), [true, false, true]);
        assert!(next.is_open());
    }

    #[tokio::test]
    async fn stream_with_calls_is_not_closed_but_awaited() {
        let stream_limits = Arc::new(StreamLimits::new(1));
        let busy = Fake::open(&stream_limits).await;
        busy.begin();
        let mut waiting = Box::pin(Fake::open(&stream_limits));
        assert!((&mut waiting).now_or_never().is_none());
        assert!(busy.is_open());

        busy.end();

        assert!(waiting.await.is_open());
        assert!(!busy.is_open());
    }
}
