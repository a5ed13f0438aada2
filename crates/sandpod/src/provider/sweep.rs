//! Deleting the sandboxes whose time is up.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use futures::{StreamExt as _, stream};

use super::{CleanupResult, PAGE};
use crate::audit::Audit;
use crate::backend::{Backend, Query, Record};
use crate::guard::{Intent, Operation, watch};
use crate::{Result, SandboxId};

/// How many sandboxes are deleted at once.
const DELETIONS: usize = 16;

/// Deletes what is refuse at the moment when it is read, unless it has changed when it is to be deleted. One that can't be
/// deleted keeps no other from it, and is an error in the end.
pub(super) async fn sweep(
    backend: &dyn Backend,
    audit: Option<&Audit>,
    max_idle: Option<Duration>,
    now: impl Fn() -> SystemTime,
) -> Result<CleanupResult> {
    let mut result = CleanupResult::default();
    let mut failures = Vec::new();
    let mut query = Query { labels: BTreeMap::new(), limit: PAGE, cursor: None };
    loop {
        let page = backend.list(&query).await?;
        let now = now();
        let (refuse, kept): (Vec<_>, Vec<_>) =
            page.records.into_iter().partition(|record| record.is_refuse(max_idle, now));
        result.kept += kept.len();
        let deleting = stream::iter(refuse).map(|record| delete_unchanged(backend, audit, record));
        let mut deleting = deleting.buffer_unordered(DELETIONS);
        while let Some(deleted) = deleting.next().await {
            match deleted {
                Ok(Some(id)) => result.deleted.push(id),
                Ok(None) => result.kept += 1,
                // As many as are deleted at once: that is not about one of them.
                Err(error) if failures.len() + 1 >= DELETIONS => return Err(error),
                Err(error) => failures.push(error),
            }
        }
        match page.cursor {
            None => return failures.pop().map_or(Ok(result), Err),
            cursor => query.cursor = cursor,
        }
    }
}

async fn delete_unchanged(
    backend: &dyn Backend,
    audit: Option<&Audit>,
    record: Record,
) -> Result<Option<SandboxId>> {
    let intent = Intent::new(Operation::Remove, record.id.as_str(), Vec::new());
    let deleted = watch(audit, intent, None, backend.delete_unchanged(&record), |_, _| ()).await?;
    Ok(deleted.then_some(record.id))
}
