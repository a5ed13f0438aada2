//! The events of the audit.

use std::time::{Duration, SystemTime};

use sandpod_kube::k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::guard::Operation;

/// The intent or the outcome of an operation. Each operation has both, with one `id`; if its future is dropped, the
/// outcome is `cancelled`.
///
/// Events hold paths and commands, but no contents, outputs, environments or tokens.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AuditEvent {
    /// The time, in UTC.
    pub time: String,
    /// Joins an operation's intent and outcome.
    pub id: String,
    /// Whether it is an intent or an outcome.
    pub phase: Phase,
    /// The operation.
    pub operation: Operation,
    /// The sandbox's id; empty while it has none.
    pub sandbox: String,
    /// Whether a policy allows it.
    pub decision: Decision,
    /// The command, or the paths as the caller named them.
    pub targets: Vec<String>,
    /// The reason of a denial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The number of bytes that are written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Of an edit: whether all occurrences are replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replace_all: Option<bool>,
    /// The exit code of a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Of an outcome: the code of the error, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Of an outcome: the duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<u64>,
    /// The number of events before this one that were lost.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost_before: u64,
}

/// The two events of an operation.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Before the operation.
    Intent,
    /// After the operation.
    Outcome,
}

/// The decision of the policy.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// The policy allows it.
    Allowed,
    /// The policy denies it.
    Denied,
}

impl AuditEvent {
    /// Creates the intent of an operation.
    pub(crate) fn intent(operation: Operation, sandbox: &str, targets: Vec<String>) -> Self {
        Self {
            time: now(),
            id: format!("{:016x}", random()),
            phase: Phase::Intent,
            operation,
            sandbox: sandbox.to_owned(),
            decision: Decision::Allowed,
            targets,
            reason: None,
            size: None,
            replace_all: None,
            exit_code: None,
            error: None,
            duration_us: None,
            lost_before: 0,
        }
    }

    /// Creates the outcome of the operation, with its duration.
    pub(crate) fn outcome(&self, took: Duration) -> Self {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        Self { time: now(), phase: Phase::Outcome, duration_us: Some(took), ..self.clone() }
    }

    pub(crate) fn denied(mut self, reason: impl Into<String>) -> Self {
        (self.decision, self.reason) = (Decision::Denied, Some(reason.into()));
        self
    }
}

fn now() -> String {
    Timestamp::try_from(SystemTime::now()).map(|time| format!("{time:.6}")).unwrap_or_default()
}

/// Returns a random number for an id, which must be unique but not secret.
pub(super) fn random() -> u64 {
    fastrand::u64(..)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}
