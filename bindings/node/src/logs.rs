//! Forwards the library's log to a JavaScript function.

use std::sync::{PoisonError, RwLock};

use napi::Status;
use napi::bindgen_prelude::{FnArgs, Function};
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use napi_derive::napi;
use sandpod::agents::{self, LogLine};

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
    agents::forward_logs(|LogLine { level, logger, text }| {
        let callback = CALLBACK.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(callback) = callback.as_ref() {
            let line = FnArgs::from((level.as_str().to_lowercase(), logger, text));
            callback.call(line, ThreadsafeFunctionCallMode::NonBlocking);
        }
    });
    Ok(())
}
