//! The spans that a future opens, by name.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tracing::instrument::WithSubscriber as _;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

#[derive(Clone, Default)]
struct Names {
    seen: Arc<Mutex<Vec<&'static str>>>,
    count: Arc<AtomicU64>,
}

/// The result of `work`, and the spans that it opened.
pub(crate) async fn spans_of<T>(work: impl Future<Output = T>) -> (T, Vec<&'static str>) {
    let names = Names::default();
    let done = work.with_subscriber(names.clone()).await;
    let seen = names.seen.lock().expect("the lock is not poisoned").clone();
    (done, seen)
}

impl Subscriber for Names {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span()
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.seen.lock().expect("the lock is not poisoned").push(span.metadata().name());
        Id::from_u64(self.count.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn event(&self, _: &Event<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
