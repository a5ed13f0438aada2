//! What is told of an operation.

use std::time::{Duration, SystemTime};

use sandpod_kube::k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::guard::Operation;

/// What an operation was about to do, or what became of it. Each operation has both, with one `id`; if its future is
/// dropped, the outcome says so.
///
/// It tells paths and commands, for that is what it is for, but no contents, outputs, environments or tokens.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AuditEvent {
    /// When, in UTC.
    pub time: String,
    /// Joins an operation's intent and outcome.
    pub id: String,
    /// Before or after.
    pub phase: Phase,
    /// What is done.
    pub operation: Operation,
    /// The sandbox's id; empty while it has none.
    pub sandbox: String,
    /// Whether it is allowed.
    pub decision: Decision,
    /// The command, or the paths as the caller named them.
    pub targets: Vec<String>,
    /// Why it is denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The bytes that are written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Of an edit: all occurrences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replace_all: Option<bool>,
    /// How a command ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Of an outcome: the error's name, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Of an outcome: how long it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<u64>,
    /// So many events before this one could not be told.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost_before: u64,
}

/// Before or after.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It is about to be done.
    Intent,
    /// It was done, or not.
    Outcome,
}

/// Whether it is allowed.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// It is.
    Allowed,
    /// A policy says no.
    Denied,
}

impl AuditEvent {
    /// The intent of an operation.
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

    /// What became of it.
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

/// Names need to be different, not secret.
pub(super) fn random() -> u64 {
    fastrand::u64(..)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}
