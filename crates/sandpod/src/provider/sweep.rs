//! Deleting the sandboxes whose time is up.
//!
//! The record of a sandbox's last use is late: it is written at most once a [period](super::activity), because every
//! write is a request to the API server. So a record alone can't tell whether a sandbox was idle for a second. For a
//! sandbox without a call for `max_idle` by its record, but not for `max_idle` and the time that the record may be late,
//! a cleanup asks the guest ([`Guests`]), which counts its calls. The guest decides in one step: if no call ran for
//! `max_idle` it ends and begins no further one, so nothing is used between the answer and the deletion. A guest that
//! can't be asked (it is unreachable, older than this call, or a stock runtime) leaves it to the record.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use futures::future::BoxFuture;
use futures::{StreamExt as _, stream};
use tokio::time::{Instant, timeout_at};

use super::{CleanupResult, MAX_TRIES, PAGE};
use crate::audit::Audit;
use crate::backend::{Backend, PlaceState, Query, Record};
use crate::guard::{Intent, Operation, watch};
use crate::{Error, ErrorKind, Result, SandboxId};

/// How many sandboxes are asked and deleted at once.
const AT_ONCE: usize = 16;
/// How long one guest is asked.
const ASK_LIMIT: Duration = Duration::from_secs(10);
/// How long a cleanup asks guests in all. After that the records decide.
const ASKING_LIMIT: Duration = Duration::from_secs(60);

/// The guests of sandboxes.
pub(super) trait Guests: Sync {
    /// Ends the sandbox's guest if no call ran for `least`, and says whether it ends.
    fn end_if_idle<'a>(&'a self, record: &'a Record, least: Duration) -> BoxFuture<'a, Result<bool>>;
}

/// A cleanup.
pub(super) struct Sweep<'a, G> {
    pub(super) backend: &'a dyn Backend,
    pub(super) guests: &'a G,
    pub(super) audit: Option<&'a Audit>,
    /// Takes the place of each sandbox's own idle time to live.
    pub(super) max_idle: Option<Duration>,
}

/// What a record says of its sandbox.
enum Finding {
    /// Its time is up, or nobody ever got it.
    Over,
    /// Its guest knows whether it was idle for so long.
    Undecided(Duration),
    InUse,
}

impl<G: Guests> Sweep<'_, G> {
    /// Deletes what is over at the moment when it is read, unless it has changed when it is to be deleted. A sandbox that
    /// can't be deleted keeps no other from it, and is an error in the end.
    pub(super) async fn run(&self, now: impl Fn() -> SystemTime) -> Result<CleanupResult> {
        let mut result = CleanupResult::default();
        let mut failures = Vec::new();
        let mut query = Query { labels: BTreeMap::new(), limit: PAGE, cursor: None };
        let asked_until = Instant::now() + ASKING_LIMIT;
        loop {
            let page = self.backend.list(&query).await?;
            let now = now();
            let records = page.records.into_iter().map(|record| (self.judge(&record, now), record));
            let deleting = records.map(|(finding, record)| self.settle(finding, record, asked_until));
            let mut deleting = stream::iter(deleting).buffer_unordered(AT_ONCE);
            while let Some(deleted) = deleting.next().await {
                match deleted {
                    Ok(Some(id)) => result.deleted.push(id),
                    Ok(None) => result.kept += 1,
                    // As many as are deleted at once: that is not about one of them.
                    Err(error) if failures.len() + 1 >= AT_ONCE => return Err(error),
                    Err(error) => failures.push(error),
                }
            }
            drop(deleting);
            match page.cursor {
                None => return failures.pop().map_or(Ok(result), Err),
                cursor => query.cursor = cursor,
            }
        }
    }

    fn judge(&self, record: &Record, now: SystemTime) -> Finding {
        match self.max_idle {
            _ if record.is_collectable(self.max_idle, now) => Finding::Over,
            Some(max_idle) if record.may_be_idle(max_idle, now) => Finding::Undecided(max_idle),
            _ => Finding::InUse,
        }
    }

    /// Deletes the sandbox if it is over; its id if this call has deleted it.
    async fn settle(
        &self,
        finding: Finding,
        record: Record,
        asked_until: Instant,
    ) -> Result<Option<SandboxId>> {
        match finding {
            Finding::Over => self.delete_unchanged(record).await,
            Finding::Undecided(max_idle) => {
                let limit = asked_until.min(Instant::now() + ASK_LIMIT);
                let asked = timeout_at(limit, self.guests.end_if_idle(&record, max_idle)).await;
                match asked.unwrap_or_else(|_| Err(slow())) {
                    Ok(false) => Ok(None),
                    Ok(true) => self.delete_ended(&record, true).await,
                    Err(error) => {
                        tracing::debug!(id = %record.id, %error, "the guest could not be asked whether it is idle");
                        // It may have ended although its answer was lost.
                        self.delete_ended(&record, false).await
                    }
                }
            }
            Finding::InUse => Ok(None),
        }
    }

    /// Deletes the sandbox whose guest has ended, by its record if that is not known. A use that was noted late may have
    /// changed the record meanwhile; another place is another sandbox.
    async fn delete_ended(&self, asked: &Record, is_known: bool) -> Result<Option<SandboxId>> {
        for _ in 0..MAX_TRIES {
            let now = self.backend.find(&asked.id).await?;
            let now = now.filter(|now| now.claim == asked.claim && now.generation == asked.generation);
            let Some(now) = now.filter(|now| is_known || now.place_state == PlaceState::Ended) else {
                return Ok(None);
            };
            if let Some(id) = self.delete_unchanged(now).await? {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    async fn delete_unchanged(&self, record: Record) -> Result<Option<SandboxId>> {
        let intent = Intent::new(Operation::Remove, record.id.as_str(), Vec::new());
        let deleted =
            watch(self.audit, intent, None, self.backend.delete_unchanged(&record), |_, _| ()).await?;
        Ok(deleted.then_some(record.id))
    }
}

fn slow() -> Error {
    Error::new(ErrorKind::Timeout, "The guest did not answer in time.", "Clean up again later.")
}
