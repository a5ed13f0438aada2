//! Forwards the log of the library to Python's `logging`.
//!
//! A bounded queue passes lines to a dedicated thread, so that logging never waits for the GIL.

use std::sync::mpsc::{self, SyncSender};
use std::thread;

use pyo3::prelude::*;
use sandpod::agents::{self, LogLine};
use sandpod_client::ProcessLocal;
use tracing::Level;

/// The capacity of the queue. Lines that do not fit are dropped.
const QUEUE: usize = 1024;

static LOG: ProcessLocal<Log> = ProcessLocal::new();

/// Forwards the log to Python's loggers: `sandpod` and its children.
#[pyfunction]
pub(crate) fn forward_logs() {
    agents::forward_logs(|line| {
        if let Log(Some(queue)) = &*LOG.get() {
            // Dropped if the queue is full.
            let _ = queue.try_send(line);
        }
    });
}

/// The queue of this process, which a dedicated thread reads. A forked child has its own.
struct Log(Option<SyncSender<LogLine>>);

impl Default for Log {
    fn default() -> Self {
        let (sender, lines) = mpsc::sync_channel::<LogLine>(QUEUE);
        let thread = thread::Builder::new().name("sandpod-logs".to_owned()).spawn(move || {
            for line in lines {
                // A finalizing interpreter takes no records; `logging` reports the errors of handlers itself.
                Python::try_attach(|py| drop(write(py, &line)));
            }
        });
        Self(thread.is_ok().then_some(sender))
    }
}

fn write(py: Python<'_>, line: &LogLine) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", (&line.logger,))?;
    logger.call_method1("log", (level(line.level), "%s", &line.text)).map(drop)
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
