//! What all connections of this process do, counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// Of this process, since it began. A forked child goes on from its parent's numbers.
pub(crate) static STREAMS: Streams =
    Streams { open: AtomicU64::new(0), opened: AtomicU64::new(0), reopened: AtomicU64::new(0) };

/// Streams to guests.
pub(crate) struct Streams {
    open: AtomicU64,
    opened: AtomicU64,
    reopened: AtomicU64,
}

impl Streams {
    /// Counts a stream until the result is dropped.
    pub(crate) fn open(&'static self) -> OpenStream {
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        OpenStream(self)
    }

    /// The last stream was in the place of an earlier one.
    pub(crate) fn reopened(&self) {
        self.reopened.fetch_add(1, Ordering::Relaxed);
    }
}

/// A stream that is open.
pub(crate) struct OpenStream(&'static Streams);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many streams this process has to its sandboxes, and had.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct StreamMetrics {
    /// Open now.
    pub open: u64,
    /// Opened since the process began.
    pub opened: u64,
    /// Those of them that took the place of one that was lost or closed.
    pub reconnects: u64,
}

impl StreamMetrics {
    /// As it is now.
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
