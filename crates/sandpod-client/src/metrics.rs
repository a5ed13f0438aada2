//! Counters of all connections of this process.

use std::sync::atomic::{AtomicU64, Ordering};

/// The counters of this process. A forked child continues with its parent's numbers.
pub(crate) static STREAMS: Streams =
    Streams { open: AtomicU64::new(0), opened: AtomicU64::new(0), reopened: AtomicU64::new(0) };

/// Counts streams to guests.
pub(crate) struct Streams {
    open: AtomicU64,
    opened: AtomicU64,
    reopened: AtomicU64,
}

impl Streams {
    /// Counts a stream as open until the result is dropped.
    pub(crate) fn open(&'static self) -> OpenStream {
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        OpenStream(self)
    }

    /// Counts the last stream as a replacement of an earlier one.
    pub(crate) fn reopened(&self) {
        self.reopened.fetch_add(1, Ordering::Relaxed);
    }
}

/// An open stream.
pub(crate) struct OpenStream(&'static Streams);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Number of streams from this process to its sandboxes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct StreamMetrics {
    /// Streams that are open now.
    pub open: u64,
    /// Streams opened since the process began.
    pub opened: u64,
    /// Streams that replaced a lost or closed one.
    pub reconnects: u64,
}

impl StreamMetrics {
    /// Returns the current numbers.
    #[must_use]
    pub fn now() -> Self {
        let number = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Self {
            open: number(&STREAMS.open),
            opened: number(&STREAMS.opened),
            reconnects: number(&STREAMS.reopened),
        }
    }
}
