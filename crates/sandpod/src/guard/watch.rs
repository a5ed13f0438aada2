//! One operation from start to end: a span, two audit events and the counters.

use std::future::Future;
use std::time::Duration;

use sandpod_client::{Error as ClientError, ErrorCode, Failure};
use tokio::time::Instant;
use tracing::Instrument as _;

use super::operation::Operation;
use crate::audit::{Audit, AuditEvent};
use crate::metrics::{COUNTERS, End};
use crate::{Error, ErrorKind};

/// An operation before it is performed.
pub(crate) struct Intent<'a> {
    pub(crate) operation: Operation,
    /// The sandbox's id. Empty if there is none.
    pub(crate) sandbox: &'a str,
    /// The command or the paths, as the caller named them.
    pub(crate) targets: Vec<String>,
    pub(crate) size: Option<u64>,
    pub(crate) replace_all: Option<bool>,
}

impl<'a> Intent<'a> {
    pub(crate) fn new(operation: Operation, sandbox: &'a str, targets: Vec<String>) -> Self {
        Self { operation, sandbox, targets, size: None, replace_all: None }
    }

    fn event(self) -> AuditEvent {
        let event = AuditEvent::intent(self.operation, self.sandbox, self.targets);
        AuditEvent { size: self.size, replace_all: self.replace_all, ..event }
    }
}

/// An error of an operation that the audit records.
pub(crate) trait AuditedError {
    /// Returns its code for programs.
    fn code(&self) -> &'static str;
    /// Returns why a policy denies the operation, if one does.
    fn denial(&self) -> Option<String>;
    /// Returns the error of an operation that was not performed because the audit could not record it.
    fn not_recorded(why: &str) -> Self;
}

/// Performs `work` unless a policy denies it or a strict audit cannot record it. `describe` adds the result to the
/// outcome.
pub(crate) async fn watch<T, E: AuditedError>(
    audit: Option<&Audit>,
    intent: Intent<'_>,
    refused: Option<E>,
    work: impl Future<Output = Result<T, E>>,
    describe: impl FnOnce(&T, &mut AuditEvent),
) -> Result<T, E> {
    let operation = intent.operation;
    let span = tracing::info_span!("operation", name = operation.as_str(), sandbox = intent.sandbox);
    let watched = async {
        tracing::debug!(targets = ?intent.targets, "begun");
        let mut underway = Underway::new(audit, intent);
        underway
            .begin(refused.as_ref().and_then(AuditedError::denial))
            .await
            .map_err(|why| E::not_recorded(&why))?;
        let result = match refused {
            Some(error) => Err(error),
            None => work.await,
        };
        underway.end(&result, describe);
        result
    };
    watched.instrument(span).await
}

/// An operation that has begun. Dropping it records the outcome `cancelled`.
struct Underway<'a> {
    operation: Operation,
    audit: Option<&'a Audit>,
    event: Option<AuditEvent>,
    began: Instant,
    is_over: bool,
}

impl<'a> Underway<'a> {
    fn new(audit: Option<&'a Audit>, intent: Intent<'_>) -> Self {
        let operation = intent.operation;
        let event = audit.map(|_| intent.event());
        Self { operation, audit, event, began: Instant::now(), is_over: false }
    }

    async fn begin(&mut self, denial: Option<String>) -> Result<(), String> {
        let (Some(audit), Some(event)) = (self.audit, &mut self.event) else { return Ok(()) };
        if let Some(denial) = denial {
            *event = event.clone().denied(denial);
        }
        let told = audit.intent(event.clone()).await;
        if told.is_err() {
            // The operation is not performed, so there is no outcome.
            self.count(End::Failed);
        }
        told
    }

    fn end<T, E: AuditedError>(&mut self, result: &Result<T, E>, describe: impl FnOnce(&T, &mut AuditEvent)) {
        let denial = result.as_ref().err().and_then(AuditedError::denial);
        let error = result.as_ref().err().map(AuditedError::code);
        let took = self.count(match (&denial, &error) {
            (Some(_), _) => End::Denied,
            (None, Some(_)) => End::Failed,
            (None, None) => End::Done,
        });
        tracing::debug!(?took, error, "ended");
        let (Some(audit), Some(event)) = (self.audit, &self.event) else { return };
        let mut outcome = event.outcome(took);
        outcome.error = error.map(str::to_owned);
        if let Some(denial) = denial {
            outcome = outcome.denied(denial);
        }
        if let Ok(value) = result {
            describe(value, &mut outcome);
        }
        audit.tell(outcome);
    }

    fn count(&mut self, end: End) -> Duration {
        self.is_over = true;
        let took = self.began.elapsed();
        COUNTERS.count(self.operation, end, took);
        took
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let took = self.count(End::Failed);
        if let (Some(audit), Some(event)) = (self.audit, &self.event) {
            audit.tell(AuditEvent { error: Some("cancelled".to_owned()), ..event.outcome(took) });
        }
    }
}

impl AuditedError for ClientError {
    fn code(&self) -> &'static str {
        self.row().code
    }

    fn denial(&self) -> Option<String> {
        match self {
            Self::Failure(failure) if failure.code() == ErrorCode::Policy => {
                Some(failure.message().to_owned())
            }
            Self::PathEscapes(message) => Some(message.clone()),
            _ => None,
        }
    }

    fn not_recorded(why: &str) -> Self {
        let message = format!("nothing was done, because the audit failed: {why}");
        Self::Failure(Failure::new(ErrorCode::Limit, message))
    }
}

impl AuditedError for Error {
    fn code(&self) -> &'static str {
        self.kind().as_str()
    }

    fn denial(&self) -> Option<String> {
        None
    }

    fn not_recorded(why: &str) -> Self {
        let message = format!("Nothing was done, because the audit failed: {why}.");
        Self::new(ErrorKind::Unavailable, message, "Mend the audit, or set strict_audit to false.")
    }
}
