//! Retries through outages of the API server: it restarts, or the network to it is cut for a while.
//!
//! A call that failed by an outage may have been carried out. [`outlast`] therefore takes work that first reads the
//! state, or whose objects have names and holders by which a repeated call recognises its own objects.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{Error, Result};

/// How long a creation retries if the API server was never reached: a wrong address is more likely than a long outage.
const FIRST_LIMIT: Duration = Duration::from_secs(10);
/// How long deleting the objects of a failed creation is retried.
pub(in crate::backend) const UNDO_LIMIT: Duration = Duration::from_secs(600);
/// The longest lifetime of an unfinished sandbox, unless creating it may take longer.
const MAX_UNFINISHED: Duration = Duration::from_secs(3600);
/// Time for the calls between the waits of a creation.
const MARGIN: Duration = Duration::from_secs(60);
/// Pause before the next try.
const PAUSE: Duration = Duration::from_millis(200);

/// Repeats `work` while it fails by an outage, until `end`.
pub(crate) async fn outlast<T, W>(end: Instant, mut work: impl FnMut() -> W) -> Result<T>
where
    W: Future<Output = Result<T>>,
{
    loop {
        match work().await {
            Err(error) if goes_on(&error, end).await => {}
            result => return result,
        }
    }
}

/// Whether to retry after `error`: true for an outage before `end`, after a pause.
pub(in crate::backend) async fn goes_on(error: &Error, end: Instant) -> bool {
    if !error.is_outage() || Instant::now() + PAUSE >= end {
        return false;
    }
    tracing::debug!(%error, "retrying: the API server could not be reached");
    sleep(PAUSE).await;
    true
}

/// Whether the API server was ever reached.
#[derive(Debug, Default)]
pub(in crate::backend) struct Contact(AtomicBool);

impl Contact {
    /// Returns when a creation that may go on until `end` stops retrying.
    pub(in crate::backend) fn end(&self, end: Instant) -> Instant {
        if self.0.load(Ordering::Relaxed) { end } else { end.min(Instant::now() + FIRST_LIMIT) }
    }

    /// Records that the API server answered.
    pub(in crate::backend) fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the longest time that creating a sandbox takes, where each wait takes up to `startup_limit`: for the API
/// server, for the Pod, and for a setup script if there is one.
pub(in crate::backend) fn making_limit(startup_limit: Duration, has_setup: bool) -> Duration {
    startup_limit.saturating_mul(if has_setup { 3 } else { 2 }).saturating_add(MARGIN)
}

/// Returns the lifetime of an unfinished sandbox: its time to live or an hour, but no less than creating it may take.
pub(in crate::backend) fn unfinished_lifetime(ttl: Option<Duration>, making_limit: Duration) -> Duration {
    ttl.unwrap_or(MAX_UNFINISHED).min(MAX_UNFINISHED).max(making_limit)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use sandpod_kube::kube;

    use super::*;
    use crate::ErrorKind;

    fn outage() -> Error {
        Error::api("read a Lease", &kube::Error::Service("connection refused".into()))
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_repeated_through_an_outage_and_no_longer_than_its_end() {
        let tries = Cell::new(0);
        let work = || async {
            tries.set(tries.get() + 1);
            if tries.get() < 50 { Err(outage()) } else { Ok(()) }
        };
        outlast(Instant::now() + Duration::from_secs(60), work).await.unwrap();
        assert_eq!(tries.get(), 50);

        let begun = Instant::now();
        let lost: Result<()> = outlast(begun + Duration::from_secs(60), || async { Err(outage()) }).await;
        assert_eq!(lost.unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(begun.elapsed() > Duration::from_secs(59) && begun.elapsed() <= Duration::from_secs(60));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_no_outage() {
        let tries = Cell::new(0);
        let refused: Result<()> = outlast(Instant::now() + Duration::from_secs(60), || async {
            tries.set(tries.get() + 1);
            Err(Error::new(ErrorKind::Unavailable, "It is suspended.", "Resume it."))
        })
        .await;
        refused.unwrap_err();
        assert_eq!(tries.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_was_never_reached_is_tried_for_a_shorter_time() {
        let (contact, end) = (Contact::default(), Instant::now() + Duration::from_secs(120));
        assert_eq!(contact.end(end), Instant::now() + FIRST_LIMIT);
        contact.note();
        assert_eq!(contact.end(end), end);
    }

    #[test]
    fn an_unfinished_sandbox_lives_for_its_ttl_or_an_hour_or_as_long_as_making_takes() {
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
        let limit = making_limit(10 * second, false);
        assert_eq!(unfinished_lifetime(None, limit), hour);
        assert_eq!(unfinished_lifetime(Some(2 * hour), limit), hour);
        assert_eq!(unfinished_lifetime(Some(600 * second), limit), 600 * second);
        assert_eq!(unfinished_lifetime(Some(second), limit), 80 * second);
        assert!(making_limit(10 * second, true) > limit);
    }
}
