//! A subscriber that captures events and spans of this process at level info and above.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

static CAPTURED: OnceLock<&'static Captured> = OnceLock::new();

/// One line for each event and span.
#[derive(Default)]
pub(crate) struct Captured {
    lines: Mutex<Vec<String>>,
    spans: AtomicU64,
}

struct Capture(&'static Captured);

/// Installs the subscriber on the first call and returns it.
pub(crate) fn capture() -> &'static Captured {
    CAPTURED.get_or_init(|| {
        let captured: &'static Captured = Box::leak(Box::default());
        tracing::subscriber::set_global_default(Capture(captured)).unwrap();
        captured
    })
}

impl Captured {
    pub(crate) fn all(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl Subscriber for Capture {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut line = Line(span.metadata().name().to_owned());
        span.record(&mut line);
        self.0.lines.lock().unwrap().push(line.0);
        Id::from_u64(self.0.spans.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        let mut line = Line(String::new());
        values.record(&mut line);
        self.0.lines.lock().unwrap().push(line.0);
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lines.lock().unwrap().push(line.0);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
