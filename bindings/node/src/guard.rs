//! Policies, and audits for JavaScript.

use std::sync::mpsc;
use std::time::Duration;

use napi::bindgen_prelude::Function;
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use napi::{Env, Status};
use napi_derive::napi;
use sandpod::{AuditEvent, AuditSink, SandboxPolicy};

use crate::errors::Failed;

/// The longest time that JavaScript may take to receive events.
const LIMIT: Duration = Duration::from_secs(30);

/// Parses and checks a policy.
pub(crate) fn policy(json: &str) -> Result<SandboxPolicy, Failed> {
    Ok(SandboxPolicy::from_json(json)?)
}

/// Called with events as JSON; it does not keep the process alive. It returns an error's message, or nothing.
type Callback = ThreadsafeFunction<String, Option<String>, String, Status, false, true>;

/// Sends events to a JavaScript function and waits for its result. It runs on the audit's own thread.
pub(crate) struct Receiver(Callback);

impl Receiver {
    pub(crate) fn new(callback: &Function<'_, String, Option<String>>) -> napi::Result<Self> {
        let callback = callback.build_threadsafe_function().callee_handled::<false>().weak::<true>();
        Ok(Self(callback.build()?))
    }
}

impl AuditSink for Receiver {
    fn record(&mut self, events: &[AuditEvent]) -> Result<(), String> {
        let events = serde_json::to_string(events).map_err(|error| error.to_string())?;
        let (sender, taken) = mpsc::channel();
        let returned = move |returned: napi::Result<Option<String>>, _: Env| {
            let outcome = match returned {
                Ok(None) => Ok(()),
                Ok(Some(error)) => Err(error),
                Err(error) => Err(error.reason.clone()),
            };
            let _ = sender.send(outcome);
            Ok(())
        };
        self.0.call_with_return_value(events, ThreadsafeFunctionCallMode::NonBlocking, returned);
        taken.recv_timeout(LIMIT).unwrap_or_else(|_| Err("the callback did not return".to_owned()))
    }
}

/// Returns the number of lines of an unmodified audit file.
#[napi]
pub fn verify_audit(path: String) -> napi::Result<f64> {
    let head = sandpod::verify_audit(std::path::Path::new(&path), None).map_err(Failed::from)?;
    Ok(crate::tree::number(head.lines))
}
