//! Policies and audits, as Python has them.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::mpsc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sandpod::{AuditEvent, AuditSink, CommandRules, Operation, SandboxPolicy};

use crate::errors::ProviderError;

/// A policy that is asked by name alone, for sandboxes that aren't ours.
#[pyclass(frozen, module = "sandpod._native")]
pub(crate) struct Policy {
    policy: SandboxPolicy,
    commands: CommandRules,
}

#[pymethods]
impl Policy {
    /// The policy is JSON; one that makes no sense is refused.
    #[new]
    fn new(policy: &str) -> PyResult<Self> {
        let policy = self::policy(policy)?;
        let commands = CommandRules::new(&policy.deny_commands, &policy.deny_texts).map_err(unusable)?;
        Ok(Self { policy, commands })
    }

    /// Why an operation on a path is refused, if it is.
    fn refusal(&self, operation: &str, path: &str) -> PyResult<Option<String>> {
        let known = Operation::ALL.into_iter().find(|known| known.as_str() == operation);
        let unknown = || PyValueError::new_err(format!("There is no operation {operation:?}."));
        Ok(self.policy.denies(known.ok_or_else(unknown)?, path))
    }

    /// Whether a command line is refused.
    fn denies_command(&self, line: &str) -> bool {
        self.commands.denies(&line.into()).is_some()
    }
}

/// Reads a policy.
pub(crate) fn policy(json: &str) -> PyResult<SandboxPolicy> {
    let policy: SandboxPolicy = serde_json::from_str(json)
        .map_err(|error| PyValueError::new_err(format!("The policy can't be used: {error}.")))?;
    policy.check().map_err(unusable)?;
    Ok(policy)
}

#[expect(clippy::needless_pass_by_value, reason = "it is made for map_err")]
fn unusable(error: sandpod::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Hands events to a thread of Python's, through a queue of Python's, and waits until it has taken them. It runs on the
/// audit's own thread, which holds the interpreter for no longer than it takes to put something into the queue.
pub(crate) struct Queue(Py<PyAny>);

impl Queue {
    /// Events go into `queue` as a pair: their JSON texts and a receipt.
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
            // A receipt that is thrown away says no.
            Some(Ok(())) => taken.recv().unwrap_or_else(|_| Err("nobody listens any more".to_owned())),
        }
    }
}

impl Drop for Queue {
    /// Lets the thread at the other end go. An interpreter that ends takes it along.
    fn drop(&mut self) {
        Python::try_attach(|py| self.0.call_method1(py, "put", (py.None(),)).map(drop));
    }
}

/// By which a listener says that it has taken events, or why not.
#[pyclass(frozen, module = "sandpod._native")]
pub(crate) struct Receipt(Mutex<mpsc::Sender<Result<(), String>>>);

#[pymethods]
impl Receipt {
    fn settle(&self, error: Option<String>) {
        let sender = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Who waited may have left.
        let _ = sender.send(error.map_or(Ok(()), Err));
    }
}

/// How many lines an audit file has, if nobody changed it.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "Python hands it over")]
pub(crate) fn verify_audit(path: PathBuf) -> PyResult<u64> {
    let head = sandpod::verify_audit(&path, None);
    head.map(|head| head.lines).map_err(|error| ProviderError::from(error).into())
}
