//! Policies and audits for Python.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::mpsc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sandpod::{AuditEvent, AuditSink, CommandRules, Operation, SandboxPolicy};

use crate::errors::ProviderError;
use crate::provider::unusable;

/// A policy that checks paths by name only, for sandboxes of other packages.
#[pyclass(frozen, module = "sandpod._native")]
pub(crate) struct Policy {
    policy: SandboxPolicy,
    commands: CommandRules,
}

#[pymethods]
impl Policy {
    /// Parses a policy from JSON. An invalid policy raises `ValueError`.
    #[new]
    fn new(policy: &str) -> PyResult<Self> {
        let policy = self::policy(policy)?;
        let commands = CommandRules::new(&policy.deny_commands, &policy.deny_texts).map_err(unusable)?;
        Ok(Self { policy, commands })
    }

    /// Returns why the policy denies an operation on a path, or None.
    fn refusal(&self, operation: &str, path: &str) -> PyResult<Option<String>> {
        let known = Operation::ALL.into_iter().find(|known| known.as_str() == operation);
        let unknown = || PyValueError::new_err(format!("There is no operation {operation:?}."));
        Ok(self.policy.denies(known.ok_or_else(unknown)?, path))
    }

    /// Reports whether the policy denies a command line.
    fn denies_command(&self, line: &str) -> bool {
        self.commands.denies(&line.into()).is_some()
    }
}

/// Parses and checks a policy.
pub(crate) fn policy(json: &str) -> PyResult<SandboxPolicy> {
    SandboxPolicy::from_json(json).map_err(unusable)
}

/// Sends events to a Python thread through a Python queue and waits for the receipt. It runs on the audit's own thread,
/// which holds the GIL only while it puts an item into the queue.
pub(crate) struct Queue(Py<PyAny>);

impl Queue {
    /// Creates a sink that puts pairs into `queue`: the JSON texts of events and a receipt.
    pub(crate) fn new(queue: Py<PyAny>) -> Self {
        Self(queue)
    }
}

impl AuditSink for Queue {
    fn record(&mut self, events: &[AuditEvent]) -> Result<(), String> {
        let events: Result<Vec<_>, _> = events.iter().map(serde_json::to_string).collect();
        let events = events.map_err(|error| error.to_string())?;
        let (sender, taken) = mpsc::channel();
        let receipt = Receipt(Mutex::new(sender));
        let put = Python::try_attach(|py| self.0.call_method1(py, "put", ((events, receipt),)).map(drop));
        match put {
            None => Err("the interpreter ends".to_owned()),
            Some(Err(error)) => Err(error.to_string()),
            // A dropped receipt is a failure.
            Some(Ok(())) => taken.recv().unwrap_or_else(|_| Err("the listener has stopped".to_owned())),
        }
    }
}

impl Drop for Queue {
    /// Ends the receiving thread. An interpreter that exits ends it itself.
    fn drop(&mut self) {
        Python::try_attach(|py| self.0.call_method1(py, "put", (py.None(),)).map(drop));
    }
}

/// Acknowledges audit events, or reports why they were not recorded.
#[pyclass(frozen, module = "sandpod._native")]
pub(crate) struct Receipt(Mutex<mpsc::Sender<Result<(), String>>>);

#[pymethods]
impl Receipt {
    fn settle(&self, error: Option<String>) {
        let sender = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // The audit may have stopped waiting.
        let _ = sender.send(error.map_or(Ok(()), Err));
    }
}

/// Returns the number of lines of an unmodified audit file.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "Python hands it over")]
pub(crate) fn verify_audit(path: PathBuf) -> PyResult<u64> {
    let head = sandpod::verify_audit(&path, None);
    head.map(|head| head.lines).map_err(|error| ProviderError::from(error).into())
}
