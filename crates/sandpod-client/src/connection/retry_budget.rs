//! Limits how long a call waits for streams, and how quickly it retries.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use tokio::time::Instant;

/// An attempt that lasted this long resets the backoff.
const STABLE_AFTER: Duration = Duration::from_secs(5);

/// Returns delays that grow from 100 ms to 5 s, with jitter.
pub(super) fn backoff() -> ExponentialBackoff {
    // The jitter adds up to the delay itself.
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(Duration::from_millis(2500))
        .with_jitter()
        .without_max_times()
        .build()
}

/// Time that one call may spend waiting. The guest's working time does not count.
pub(super) struct RetryBudget {
    limit: Duration,
    left: Duration,
    losses: u32,
    delays: ExponentialBackoff,
}

impl RetryBudget {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, left: limit, losses: 0, delays: backoff() }
    }

    pub(super) fn left(&self) -> Duration {
        self.left
    }

    /// How long the call has waited.
    pub(super) fn spent(&self) -> Duration {
        self.limit.saturating_sub(self.left)
    }

    pub(super) fn spend(&mut self, since: Instant) {
        self.left = self.left.saturating_sub(since.elapsed());
    }

    /// Records the loss of an attempt that began at `since`, and waits if it is not the first one in a row.
    pub(super) async fn record_loss(&mut self, since: Instant) {
        if since.elapsed() >= STABLE_AFTER {
            (self.losses, self.delays) = (0, backoff());
        }
        if since.elapsed() >= self.limit {
            self.left = self.limit;
        }
        self.losses += 1;
        if self.losses > 1 {
            let delay = self.delays.next().unwrap_or(STABLE_AFTER).min(self.left);
            let now = Instant::now();
            tokio::time::sleep(delay).await;
            self.spend(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_stay_between_100_ms_and_5_s() {
        let delays: Vec<_> = backoff().take(50).collect();
        assert_eq!(delays.len(), 50);
        assert!(delays.iter().all(|delay| (100..=5000).contains(&delay.as_millis())), "{delays:?}");
        assert!(delays[49] > Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn long_lived_stream_restores_the_budget() {
        let mut retry_budget = RetryBudget::new(Duration::from_secs(60));
        let since = Instant::now();
        tokio::time::sleep(Duration::from_secs(60)).await;
        retry_budget.spend(since);
        assert_eq!(retry_budget.left(), Duration::ZERO);
        retry_budget.record_loss(since).await;
        assert_eq!(retry_budget.left(), Duration::from_secs(60));
    }

    #[tokio::test(start_paused = true)]
    async fn only_losses_in_quick_succession_use_the_budget() {
        let mut retry_budget = RetryBudget::new(Duration::from_secs(60));
        for _ in 0..3 {
            let since = Instant::now();
            tokio::time::sleep(STABLE_AFTER).await;
            retry_budget.record_loss(since).await;
        }
        assert_eq!(retry_budget.left(), Duration::from_secs(60));
        for _ in 0..100 {
            retry_budget.record_loss(Instant::now()).await;
        }
        assert_eq!(retry_budget.left(), Duration::ZERO);
    }
}
