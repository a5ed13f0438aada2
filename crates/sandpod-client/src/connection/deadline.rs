//! Deadlines of calls that run a command with a timeout.

use std::time::Duration;

use tokio::time::Instant;

/// How much longer than its command's timeout a call may take. The time is for the way to the guest, for killing the
/// command's processes, which takes seconds in a stock runtime, and for the answer.
pub(crate) const ANSWER_GRACE: Duration = Duration::from_secs(10);

/// The time at which a call returns even without an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    /// Returns the deadline of a call that begins now and whose command may take `timeout`. `None` if the clock cannot represent
    /// it.
    pub(crate) fn of(timeout: Duration) -> Option<Self> {
        let limit = timeout.checked_add(ANSWER_GRACE)?;
        Some(Self { at: Instant::now().checked_add(limit)?, limit })
    }

    /// Returns a deadline that is at least the grace period away. For one of several answers, because a slow caller may request
    /// it late.
    pub(crate) fn with_grace_from_now(self) -> Self {
        Self { at: self.at.max(Instant::now() + ANSWER_GRACE), ..self }
    }

    /// The total time of the call.
    pub(super) fn limit(self) -> Duration {
        self.limit
    }

    /// The remaining time.
    pub(super) fn left(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    pub(crate) fn has_passed(self) -> bool {
        self.left().is_zero()
    }

    /// Waits until a deadline; without one it never resolves.
    pub(super) async fn passed(deadline: Option<Self>) {
        match deadline {
            Some(deadline) => tokio::time::sleep_until(deadline.at).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_deadline_passes_after_the_timeout_and_the_grace_period() {
        let (deadline, begun) = (Deadline::of(Duration::from_secs(20)), Instant::now());
        Deadline::passed(deadline).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(20) + ANSWER_GRACE);
        assert!(deadline.is_some_and(Deadline::has_passed));
        assert!(deadline.is_some_and(|deadline| !deadline.with_grace_from_now().has_passed()));
    }

    #[tokio::test]
    async fn a_timeout_beyond_the_clock_has_no_deadline() {
        assert!(Deadline::of(Duration::MAX).is_none());
    }
}
