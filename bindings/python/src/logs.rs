//! Forwards the log of the core to Python's `logging`.
//!
//! A bounded queue passes records to a dedicated thread, so that logging never waits for the GIL.

use std::fmt::{self, Write as _};
use std::sync::mpsc::{self, SyncSender};
use std::thread;

use pyo3::prelude::*;
use sandpod_client::ProcessLocal;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The capacity of the queue. Records that do not fit are dropped.
const QUEUE: usize = 1024;

static LOG: ProcessLocal<Log> = ProcessLocal::new();

/// Forwards logs of the core to Python's loggers: `sandpod` and its children.
#[pyfunction]
pub(crate) fn forward_logs() {
    // Another library of this process may have set its own subscriber, which then receives the log.
    let _ = tracing::subscriber::set_global_default(Forward);
}

struct Line {
    logger: String,
    level: u8,
    text: String,
}

/// The queue of this process, which a dedicated thread reads. A forked child has its own.
struct Log(Option<SyncSender<Line>>);

impl Default for Log {
    fn default() -> Self {
        let (sender, lines) = mpsc::sync_channel::<Line>(QUEUE);
        let thread = thread::Builder::new().name("sandpod-logs".to_owned()).spawn(move || {
            for line in lines {
                // A finalizing interpreter takes no records; `logging` reports the errors of handlers itself.
                Python::try_attach(|py| drop(hand_over(py, &line)));
            }
        });
        Self(thread.is_ok().then_some(sender))
    }
}

fn hand_over(py: Python<'_>, line: &Line) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", (&line.logger,))?;
    logger.call_method1("log", (line.level, "%s", &line.text)).map(drop)
}

/// Receives events and ignores spans.
struct Forward;

impl Subscriber for Forward {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("sandpod") && *metadata.level() <= Level::DEBUG
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let line = Line {
            logger: logger(event.metadata().target()),
            level: level(*event.metadata().level()),
            text: text.message + &text.fields,
        };
        if let Log(Some(queue)) = &*LOG.get() {
            // Dropped if the queue is full.
            let _ = queue.try_send(line);
        }
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

/// Returns a module's logger: `sandpod.backend.raw` for `sandpod::backend::raw`, `sandpod.kube` for `sandpod_kube`.
fn logger(target: &str) -> String {
    target.replace("::", ".").replacen("sandpod_", "sandpod.", 1)
}

/// Returns Python's number for a level.
fn level(level: Level) -> u8 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        _ => 10,
    }
}

/// The message of an event, followed by its fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String can't fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}
