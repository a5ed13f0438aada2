//! Deletion of the objects that a failed or cancelled call has created.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// The time that a caller waits for a rollback.
const RUN_LIMIT: Duration = Duration::from_secs(10);

/// Work that runs unless it is disarmed. When it is dropped, it runs in a task of its own.
pub(crate) struct Rollback {
    /// The runtime of the work, because a future can be dropped outside of every runtime.
    runtime: Handle,
    work: Option<BoxFuture<'static, ()>>,
}

impl Rollback {
    /// Returns a rollback with nothing to do.
    pub(crate) fn none() -> Self {
        Self { runtime: Handle::current(), work: None }
    }

    /// Returns a rollback that does `work`.
    pub(crate) fn new(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { runtime: Handle::current(), work: Some(Box::pin(work)) }
    }

    /// Joins both into one that runs `next` last.
    pub(crate) fn then(mut self, mut next: Self) -> Self {
        let works = [self.work.take(), next.work.take()];
        if works.iter().all(Option::is_none) {
            return self;
        }
        Self::new(async move {
            for work in works.into_iter().flatten() {
                work.await;
            }
        })
    }

    /// Drops the work, so that the created objects stay.
    pub(crate) fn disarm(mut self) {
        self.work = None;
    }

    /// Runs the work now. If the caller is cancelled, or an outage takes long, the work continues in the background.
    pub(crate) async fn run(mut self) {
        let Some(task) = self.start() else { return };
        if let Ok(Err(_)) = timeout(RUN_LIMIT, task).await {
            tracing::warn!("deleting a sandbox that did not start was interrupted");
        }
    }

    fn start(&mut self) -> Option<JoinHandle<()>> {
        self.work.take().map(|work| self.runtime.spawn(work))
    }
}

impl Drop for Rollback {
    fn drop(&mut self) {
        self.start();
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    fn noting() -> (Rollback, oneshot::Receiver<()>) {
        let (done, seen) = oneshot::channel();
        (
            Rollback::new(async move {
                let _ = done.send(());
            }),
            seen,
        )
    }

    #[tokio::test]
    async fn a_dropped_rollback_runs() {
        let (rollback, seen) = noting();
        drop(rollback);
        seen.await.unwrap();
    }

    #[tokio::test]
    async fn a_disarmed_rollback_does_not_run() {
        let (rollback, seen) = noting();
        rollback.disarm();
        seen.await.unwrap_err();
    }

    #[tokio::test]
    async fn joined_rollbacks_both_run_or_are_both_disarmed() {
        let ((first, first_seen), (second, second_seen)) = (noting(), noting());
        first.then(second).run().await;
        first_seen.await.unwrap();
        second_seen.await.unwrap();
        let ((first, first_seen), (second, _second_seen)) = (noting(), noting());
        first.then(second).disarm();
        first_seen.await.unwrap_err();
    }

    #[tokio::test]
    async fn run_returns_when_the_rollback_is_done() {
        let (rollback, mut seen) = noting();
        rollback.run().await;
        seen.try_recv().unwrap();
        Rollback::none().run().await;
    }
}
