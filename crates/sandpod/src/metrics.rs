//! Counts the operations on sandboxes in this process. [`Metrics`] is a snapshot of the counters.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sandpod_client::StreamMetrics;

use crate::guard::Operation;

/// Upper bounds of the histogram's buckets in microseconds. A last bucket counts longer durations.
pub(crate) const BUCKETS_US: [u64; 7] = [1_000, 5_000, 25_000, 100_000, 500_000, 2_500_000, 30_000_000];

/// Counters of this process. A forked child inherits its parent's values.
pub(crate) static COUNTERS: Counters = Counters::new();

pub(crate) struct Counters([Counter; Operation::ALL.len()]);

struct Counter {
    begun: AtomicU64,
    failed: AtomicU64,
    denied: AtomicU64,
    micros: AtomicU64,
    buckets: [AtomicU64; BUCKETS_US.len() + 1],
}

/// Result of an operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    Done,
    Failed,
    Denied,
}

impl Counters {
    const fn new() -> Self {
        Self([const { Counter::new() }; Operation::ALL.len()])
    }

    pub(crate) fn count(&self, operation: Operation, end: End, took: Duration) {
        let counter = &self.0[operation as usize];
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BUCKETS_US.iter().position(|most| micros <= *most).unwrap_or(BUCKETS_US.len());
        let add = |number: &AtomicU64, value: u64| {
            number.fetch_add(value, Ordering::Relaxed);
        };
        add(&counter.begun, 1);
        add(&counter.failed, u64::from(end == End::Failed));
        add(&counter.denied, u64::from(end == End::Denied));
        add(&counter.micros, micros);
        add(&counter.buckets[bucket], 1);
    }
}

impl Counter {
    const fn new() -> Self {
        Self {
            begun: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            micros: AtomicU64::new(0),
            buckets: [const { AtomicU64::new(0) }; BUCKETS_US.len() + 1],
        }
    }

    fn now(&self) -> OperationMetrics {
        let number = |number: &AtomicU64| number.load(Ordering::Relaxed);
        OperationMetrics {
            count: number(&self.begun),
            failed: number(&self.failed),
            denied: number(&self.denied),
            total: Duration::from_micros(number(&self.micros)),
            buckets: self.buckets.each_ref().map(number),
        }
    }
}

/// Operations on sandboxes since this process started.
///
/// ```
/// let metrics = sandpod::Metrics::now();
/// assert_eq!(metrics.operations.get("grep"), None, "there was no search yet");
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Metrics {
    /// Metrics by operation name. Operations that were never called are absent.
    pub operations: BTreeMap<&'static str, OperationMetrics>,
    /// Metrics of the streams to sandboxes.
    pub streams: StreamMetrics,
}

/// Number and duration of the calls of one operation.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct OperationMetrics {
    /// Calls that have ended.
    pub count: u64,
    /// Calls that failed.
    pub failed: u64,
    /// Calls that a policy denied.
    pub denied: u64,
    /// Sum of all durations.
    pub total: Duration,
    /// Histogram of durations: up to 1, 5, 25, 100 and 500 ms, 2.5 s, 30 s, and longer.
    pub buckets: [u64; 8],
}

impl Metrics {
    /// Returns the current values.
    #[must_use]
    pub fn now() -> Self {
        let all = Operation::ALL.into_iter().zip(&COUNTERS.0);
        let operations = all.map(|(operation, counter)| (operation.as_str(), counter.now()));
        Self {
            operations: operations.filter(|(_, metrics)| metrics.count > 0).collect(),
            streams: StreamMetrics::now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_counted_by_result_and_duration() {
        let counters = Counters::new();
        counters.count(Operation::Read, End::Done, Duration::from_millis(3));
        counters.count(Operation::Read, End::Failed, Duration::from_secs(60));
        counters.count(Operation::Read, End::Denied, Duration::ZERO);
        let read = counters.0[Operation::Read as usize].now();
        assert_eq!((read.count, read.failed, read.denied), (3, 1, 1));
        assert_eq!(read.buckets, [1, 1, 0, 0, 0, 0, 0, 1]);
        assert_eq!(read.total, Duration::from_millis(60_003));
    }
}
