//! Concurrent deletion of many sandboxes, within a deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use tokio::time::{Instant, timeout_at};

use super::{ListOptions, Provider};
use crate::{Error, ErrorKind, Result, SandboxId};

/// The number of concurrent deletions. Most of a deletion is waiting for the end of the Pod.
const AT_ONCE: usize = 32;

/// The upper limit of a timeout, which every clock can represent.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// The result of [`Provider::delete_all`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DeletionResult {
    /// The deleted sandboxes.
    pub deleted: Vec<SandboxId>,
    /// The sandboxes that may still exist, each with the reason.
    pub left: Vec<(SandboxId, Error)>,
    /// Why the sandboxes with the labels could not be listed.
    pub unlisted: Option<Error>,
}

impl DeletionResult {
    /// Returns an error that names every sandbox that is left. None if all are gone.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        let first = self.left.first().map(|(_, error)| error).or(self.unlisted.as_ref())?;
        let (left, all) = (self.left.len(), self.left.len() + self.deleted.len());
        let reasons: Vec<_> =
            self.left.iter().map(|(id, error)| format!("{id} ({})", reason(error))).collect();
        let named = format!("{left} of {all} sandboxes were not deleted: {}.", reasons.join(", "));
        let named = Some(named).filter(|_| left > 0);
        let unlisted =
            self.unlisted.as_ref().map(|error| format!("Others could not be listed: {}.", reason(error)));
        let message = named.into_iter().chain(unlisted).collect::<Vec<_>>().join(" ");
        Some(Error::new(first.kind(), message, "Delete them again, or give their deletion more time."))
    }
}

fn reason(error: &Error) -> &str {
    error.message().trim_end_matches('.')
}

impl Provider {
    /// Deletes the sandboxes `ids`, and with `labels` all sandboxes that have these labels, concurrently. It returns
    /// when all are gone, or after `within`. A failed deletion does not stop the others, and a deletion that the
    /// deadline interrupts may still finish.
    pub async fn delete_all(
        &self,
        ids: Vec<SandboxId>,
        labels: Option<BTreeMap<String, String>>,
        within: Duration,
    ) -> DeletionResult {
        let deadline = Instant::now() + within.min(LONGEST);
        let mut result = DeletionResult::default();
        self.delete_each(ids, deadline, &mut result).await;
        if let Some(labels) = labels {
            result.unlisted = self.delete_labelled(&labels, deadline, &mut result).await.err();
        }
        result
    }

    async fn delete_labelled(
        &self,
        labels: &BTreeMap<String, String>,
        deadline: Instant,
        result: &mut DeletionResult,
    ) -> Result<()> {
        let mut seen: BTreeSet<_> = result.left.iter().map(|(id, _)| id.clone()).collect();
        loop {
            let listed =
                timeout_at(deadline, self.ids_of(labels)).await.unwrap_or_else(|_| Err(unlisted()))?;
            // Another process may have created one meanwhile.
            let found: Vec<_> = listed.into_iter().filter(|id| seen.insert(id.clone())).collect();
            if found.is_empty() {
                return Ok(());
            }
            self.delete_each(found, deadline, result).await;
        }
    }

    async fn delete_each(&self, ids: Vec<SandboxId>, deadline: Instant, result: &mut DeletionResult) {
        let deleting = ids.into_iter().map(|id| async move {
            let deleted = timeout_at(deadline, self.delete(id.as_str(), true)).await;
            (id, deleted.unwrap_or_else(|_| Err(late())))
        });
        let mut deleting = stream::iter(deleting).buffer_unordered(AT_ONCE);
        while let Some((id, deleted)) = deleting.next().await {
            match deleted {
                Ok(()) => result.deleted.push(id),
                Err(error) => result.left.push((id, error)),
            }
        }
    }

    async fn ids_of(&self, labels: &BTreeMap<String, String>) -> Result<Vec<SandboxId>> {
        let mut options = ListOptions { labels: labels.clone(), ..ListOptions::default() };
        let mut ids = Vec::new();
        loop {
            let page = self.list(options.clone()).await?;
            ids.extend(page.sandboxes.into_iter().map(|info| info.id));
            match page.cursor {
                None => return Ok(ids),
                cursor => options.cursor = cursor,
            }
        }
    }
}

fn late() -> Error {
    Error::new(ErrorKind::Timeout, "It was not gone in time.", "Delete it again.")
}

fn unlisted() -> Error {
    Error::new(ErrorKind::Timeout, "The cluster did not answer in time.", "Delete them again.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_every_remaining_sandbox_with_its_reason() {
        let id = |name: &str| name.parse::<SandboxId>().unwrap();
        let mut result = DeletionResult { deleted: vec![id("gone")], ..DeletionResult::default() };
        assert!(result.error().is_none());
        let denied = Error::new(ErrorKind::Denied, "It may not be deleted.", "Ask.");
        result.left = vec![(id("slow"), late()), (id("kept"), denied)];
        result.unlisted = Some(unlisted());
        let error = result.error().unwrap();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert_eq!(
            error.to_string(),
            "2 of 3 sandboxes were not deleted: slow (It was not gone in time), kept (It may not be deleted). \
             Others could not be listed: The cluster did not answer in time. \
             Delete them again, or give their deletion more time."
        );
    }
}
