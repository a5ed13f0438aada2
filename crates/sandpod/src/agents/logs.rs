//! The log of sandpod's crates, for the logging library of another language.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// A line of the log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogLine {
    /// How important the line is, from `DEBUG` to `ERROR`.
    pub level: Level,
    /// The name of its logger: `sandpod.backend.raw` for `sandpod::backend::raw`, `sandpod.kube` for `sandpod_kube`.
    pub logger: String,
    /// The message, followed by the fields.
    pub text: String,
}

/// Calls `forward` with each line of this process's log. Spans are ignored, and so are lines of other crates and lines
/// below `DEBUG`. `forward` runs on the thread that logs, so it must not block.
///
/// If another library of the process has set a subscriber of its own, that one receives the log.
pub fn forward_logs(forward: impl Fn(LogLine) + Send + Sync + 'static) {
    let _ = tracing::subscriber::set_global_default(Forward(forward));
}

struct Forward<F>(F);

impl<F: Fn(LogLine) + Send + Sync + 'static> Subscriber for Forward<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("sandpod") && *metadata.level() <= Level::DEBUG
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let metadata = event.metadata();
        (self.0)(LogLine {
            level: *metadata.level(),
            logger: logger(metadata.target()),
            text: text.message + &text.fields,
        });
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

/// Returns the logger of a module.
fn logger(target: &str) -> String {
    target.replace("::", ".").replacen("sandpod_", "sandpod.", 1)
}

/// The message of an event, followed by its fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn line_has_the_logger_the_message_and_the_fields() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let forward = {
            let lines = lines.clone();
            Forward(move |line| lines.lock().unwrap().push(line))
        };

        tracing::subscriber::with_default(forward, || {
            tracing::warn!(target: "sandpod_kube::exec", pod = "a-1", "The stream of {} ended.", "a");
            tracing::debug!(target: "sandpod::backend::raw", "A Pod was created.");
            tracing::trace!(target: "sandpod::backend::raw", "too detailed");
            tracing::error!(target: "hyper", "another crate");
        });

        let line = |level, logger: &str, text: &str| LogLine {
            level,
            logger: logger.to_owned(),
            text: text.to_owned(),
        };
        let expected = [
            line(Level::WARN, "sandpod.kube.exec", "The stream of a ended. pod=\"a-1\""),
            line(Level::DEBUG, "sandpod.backend.raw", "A Pod was created."),
        ];
        assert_eq!(*lines.lock().unwrap(), expected);
    }
}
