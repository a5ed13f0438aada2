//! Attempts to send one call, repeated until the call is answered.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use sandpod_protocol::Failure;
use sandpod_protocol::v1::ErrorCode;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::channel::{Channel, Lost};
use super::deadline::Deadline;
use super::retry_budget::RetryBudget;
use super::stream::{ActiveCall, Greeting};
use super::{Connection, Observed, OpenError, StreamKind};
use crate::error::Error;
use crate::path_bounds::EncodedPathBounds;

/// How long a call waits for an answer, or for the next part of one, when the guest has no reason to be silent.
pub(crate) const STALL_LIMIT: Duration = Duration::from_secs(60);

/// A slot for one call on an open stream. The stream is not idle until the slot is dropped.
pub(crate) struct CallSlot {
    pub(crate) channel: Channel,
    pub(crate) greeting: Arc<Greeting>,
    /// Changes when the guest may have lost its records.
    pub(super) epoch: u64,
    pub(super) _active_call: ActiveCall,
    pub(super) _observed: Observed,
}

/// The attempts to send one call.
pub(crate) struct Attempts {
    connection: Connection,
    what: String,
    kind: StreamKind,
    stall_limit: Option<Duration>,
    /// Latest time at which the call returns.
    deadline: Option<Deadline>,
    /// Boot id of the only boot for which the call is valid.
    boot_id: Option<String>,
    /// The call changes something.
    is_change: bool,
    /// Epoch in which a change was sent first.
    epoch: Option<u64>,
    retry_budget: RetryBudget,
    began: Instant,
    /// Why the last attempt was lost.
    lost: Option<String>,
    /// Limits of the call's paths.
    bounds: Option<EncodedPathBounds>,
}

impl Attempts {
    /// Attempts of an idempotent call.
    pub(crate) fn ask(connection: &Connection, what: impl Into<String>) -> Self {
        Self {
            connection: connection.clone(),
            what: what.into(),
            kind: StreamKind::Main,
            stall_limit: Some(STALL_LIMIT),
            deadline: None,
            boot_id: None,
            is_change: false,
            epoch: None,
            retry_budget: RetryBudget::new(connection.options().reconnect_timeout),
            began: Instant::now(),
            lost: None,
            bounds: None,
        }
    }

    /// Attempts of a call that changes something and must be executed once.
    pub(crate) fn change(connection: &Connection, what: impl Into<String>) -> Self {
        Self { is_change: true, ..Self::ask(connection, what) }
    }

    /// Selects the stream.
    pub(crate) fn on(mut self, kind: StreamKind) -> Self {
        self.kind = kind;
        self
    }

    /// Replaces the limit on the guest's silence; `None` removes it.
    pub(crate) fn stalled_after(mut self, limit: Option<Duration>) -> Self {
        self.stall_limit = limit;
        self
    }

    /// Sets a deadline that includes all waiting for streams.
    pub(crate) fn until(mut self, deadline: Option<Deadline>) -> Self {
        self.deadline = deadline;
        self
    }

    /// Replaces the deadline.
    pub(crate) fn prolong(&mut self, deadline: Option<Deadline>) {
        self.deadline = deadline;
    }

    /// Fails the call if the guest has another boot id.
    pub(crate) fn in_boot(mut self, boot_id: &str) -> Self {
        self.boot_id = Some(boot_id.to_owned());
        self
    }

    /// Limits the call to these paths.
    pub(crate) fn within(mut self, bounds: Option<EncodedPathBounds>) -> Self {
        self.bounds = bounds;
        self
    }

    /// Returns whether an earlier attempt was sent.
    pub(crate) fn is_repeated(&self) -> bool {
        self.lost.is_some()
    }

    /// Acquires a slot for the next attempt. Returns an error if another attempt cannot succeed.
    pub(crate) async fn next(&mut self) -> Result<CallSlot, Error> {
        if let Some(reason) = self.lost.clone().filter(|_| self.retry_budget.left().is_zero()) {
            return Err(Error::Lost { what: self.what.clone(), reason });
        }
        let waiting = Instant::now();
        let left = self.retry_budget.left();
        let limit = self.deadline.map_or(left, |deadline| deadline.left().min(left));
        let slot = self.connection.acquire_slot(self.kind, limit).await;
        self.retry_budget.spend(waiting);
        let slot = slot.map_err(|closed| self.closed(closed))?;
        let slot = self.bounded(slot)?;
        let is_other_boot = self.boot_id.as_ref().is_some_and(|boot_id| *boot_id != slot.greeting.boot_id);
        let is_other_epoch = self.epoch.is_some_and(|epoch| epoch != slot.epoch);
        if is_other_boot || is_other_epoch {
            return Err(Error::OutcomeUnknown { what: self.what.clone() });
        }
        self.epoch = self.is_change.then_some(slot.epoch);
        self.began = Instant::now();
        Ok(slot)
    }

    /// Waits for the answer to the current attempt. `None`: the stream was lost, and the caller must attempt again.
    pub(crate) async fn answer<T>(
        &mut self,
        answer: impl Future<Output = Result<T, Status>>,
    ) -> Result<Option<T>, Error> {
        let stalled = async {
            match self.stall_limit {
                Some(limit) => {
                    tokio::time::sleep(limit).await;
                    limit
                }
                None => std::future::pending().await,
            }
        };
        let status = tokio::select! {
            biased;
            answer = answer => match answer {
                Ok(answer) => return Ok(Some(answer)),
                Err(status) => status,
            },
            error = self.connection.gone() => return Err(error),
            limit = stalled => return Err(Error::Stalled { what: self.what.clone(), limit }),
            () = Deadline::passed(self.deadline) => return Err(self.overdue("the guest did not answer")),
        };
        let Some(reason) = Lost::reason(&status) else { return Err(self.refused(&status)) };
        self.lost = Some(reason.to_owned());
        tokio::select! {
            () = self.retry_budget.record_loss(self.began) => Ok(None),
            error = self.connection.gone() => Err(error),
            () = Deadline::passed(self.deadline) => Err(self.overdue(reason)),
        }
    }

    /// The error of a call that was sent and whose deadline has passed.
    fn overdue(&self, reason: &str) -> Error {
        let limit = self.deadline.map(Deadline::limit).unwrap_or_default();
        Error::DeadlineExceeded { what: self.what.clone(), limit, reason: reason.to_owned() }
    }

    /// Adds the path bounds to the call. Fails if the guest does not support them.
    fn bounded(&self, mut slot: CallSlot) -> Result<CallSlot, Error> {
        if let Some(bounds) = &self.bounds {
            EncodedPathBounds::check(&slot.greeting)?;
            slot.channel = slot.channel.within(bounds.clone());
        }
        Ok(slot)
    }

    fn closed(&self, closed: OpenError) -> Error {
        match (closed, &self.lost) {
            // A refusal means that this attempt did nothing, but an earlier attempt may have.
            (OpenError::Permanent(Error::Denied(reason)), Some(_)) if self.is_change => {
                Error::Lost { what: self.what.clone(), reason }
            }
            (OpenError::Permanent(error), _) => error,
            (OpenError::Transient(reason), Some(_)) if self.deadline.is_some_and(Deadline::has_passed) => {
                self.overdue(&reason)
            }
            (OpenError::Transient(reason), Some(_)) => Error::Lost { what: self.what.clone(), reason },
            (OpenError::Transient(reason), None) => {
                Error::Unreachable { reason, waited: self.retry_budget.spent() }
            }
        }
    }

    /// Converts a status of the guest into an error.
    fn refused(&self, status: &Status) -> Error {
        let failure = Failure::from(status);
        if failure.code() == ErrorCode::OutcomeUnknown {
            return Error::OutcomeUnknown { what: self.what.clone() };
        }
        if !status.details().is_empty() {
            return Error::Failure(failure);
        }
        if status.code() == Code::Unimplemented {
            let message = format!("this sandbox's guest is too old for {}: create a new sandbox", self.what);
            return Error::Failure(Failure::new(ErrorCode::Unsupported, message));
        }
        Error::Protocol(format!("invalid answer to {}: {}", self.what, status.message()))
    }
}
