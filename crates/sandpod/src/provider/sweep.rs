//! Deletion of expired sandboxes.
//!
//! A [`Sweep`] judges each sandbox by its record. The record of the last use is written at most once per
//! [period](super::activity), so a record alone cannot show a short idle time. If it shows no use for `max_idle`, but
//! its possible delay makes that uncertain, the sweep asks the guest ([`Guests`]), which counts its calls. If no call
//! ran for `max_idle`, the guest ends and accepts no further calls, so nothing is used between the answer and the
//! deletion. If the guest cannot be asked (it is unreachable, older than this call, or a stock runtime), the record
//! decides.

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

/// The number of sandboxes that are asked and deleted concurrently.
const AT_ONCE: usize = 16;
/// The time limit for asking one guest.
const ASK_LIMIT: Duration = Duration::from_secs(10);
/// The time limit for asking guests in one cleanup. After that the records decide.
const ASKING_LIMIT: Duration = Duration::from_secs(60);

/// The guests of sandboxes.
pub(super) trait Guests: Sync {
    /// Ends the sandbox's guest if no call ran for `least`, and returns whether it ends.
    fn end_if_idle<'a>(&'a self, record: &'a Record, least: Duration) -> BoxFuture<'a, Result<bool>>;
}

/// A cleanup.
pub(super) struct Sweep<'a, G> {
    pub(super) backend: &'a dyn Backend,
    pub(super) guests: &'a G,
    pub(super) audit: Option<&'a Audit>,
    /// Replaces each sandbox's own idle time to live.
    pub(super) max_idle: Option<Duration>,
}

/// The verdict on a record.
enum Finding {
    /// The sandbox has expired, or its creation was abandoned.
    Over,
    /// Only the guest knows whether the sandbox was idle for this time.
    Undecided(Duration),
    /// The sandbox is in use, or is not idle for long enough.
    InUse,
}

impl<G: Guests> Sweep<'_, G> {
    /// Deletes sandboxes that have expired when they are listed, unless they change before the deletion. A failed
    /// deletion does not stop the others, and is returned as an error at the end.
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
                    // That many failures have a common cause.
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

    /// Deletes the sandbox if it has expired. Returns its id if this call has deleted it.
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
                        // The guest may have ended although its response was lost.
                        self.delete_ended(&record, false).await
                    }
                }
            }
            Finding::InUse => Ok(None),
        }
    }

    /// Deletes a sandbox whose guest has ended. Unless `is_known`, only if its record shows that. The record is read
    /// again, because a late activity write may have changed it. Another place is another sandbox.
    async fn delete_ended(&self, asked: &Record, is_known: bool) -> Result<Option<SandboxId>> {
        for _ in 0..MAX_TRIES {
            let now = self.backend.find(&asked.id).await?;
            let now = now.filter(|now| now.uid == asked.uid && now.generation == asked.generation);
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
