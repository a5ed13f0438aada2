//! Forwards the library's log to a JavaScript function.

use std::fmt::{self, Write as _};
use std::sync::{PoisonError, RwLock};

use napi::Status;
use napi::bindgen_prelude::{FnArgs, Function};
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use napi_derive::napi;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The capacity of the queue to JavaScript. Lines that do not fit are dropped.
const QUEUE: usize = 1024;

type Line = FnArgs<(String, String, String)>;
/// The function that receives the log. It does not keep the process alive.
type Callback = ThreadsafeFunction<Line, (), Line, Status, false, true, QUEUE>;

static CALLBACK: RwLock<Option<Callback>> = RwLock::new(None);

/// Calls `callback` with the level, the logger and the text of each line. Without a callback, the log is discarded.
#[napi]
pub fn forward_logs(callback: Option<Function<'_, Line, ()>>) -> napi::Result<()> {
    let build = |callback: Function<'_, Line, ()>| {
        let builder = callback.build_threadsafe_function::<Line>();
        builder.callee_handled::<false>().weak::<true>().max_queue_size::<QUEUE>().build()
    };
    let callback = callback.map(build).transpose()?;
    *CALLBACK.write().unwrap_or_else(PoisonError::into_inner) = callback;
    // Another library of this process may have set its own subscriber, which then receives the log.
    let _ = tracing::subscriber::set_global_default(Forward);
    Ok(())
}

/// Receives events and ignores spans.
struct Forward;

impl Subscriber for Forward {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("sandpod") && *metadata.level() <= Level::DEBUG
    }

    fn event(&self, event: &Event<'_>) {
        let callback = CALLBACK.read().unwrap_or_else(PoisonError::into_inner);
        let Some(callback) = callback.as_ref() else { return };
        let mut text = Text::default();
        event.record(&mut text);
        let level = event.metadata().level().as_str().to_lowercase();
        let logger = event.metadata().target().replace("::", ".").replacen("sandpod_", "sandpod.", 1);
        let line = FnArgs::from((level, logger, text.message + &text.fields));
        callback.call(line, ThreadsafeFunctionCallMode::NonBlocking);
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
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
