//! The report that a sandbox lost its files. Calls carry it until it reaches a caller.
//!
//! A [`Loss`] belongs to a handle and its clones, and each clone reports it through a [`Reporter`]. The loss is
//! recorded as reported only when a result with the report reaches its caller, so a dropped call does not count.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use sandpod_client::{Error, Notice};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

/// A future that records on the sandbox's anchor that the loss was reported.
pub(crate) type Record = BoxFuture<'static, ()>;

/// The loss that callers of a sandbox have not received yet, if any.
pub(crate) struct Loss {
    state: Mutex<State>,
    tasks: TaskTracker,
    runtime: Handle,
}

#[derive(Default)]
struct State {
    notice: Option<Notice>,
    record: Option<Record>,
}

impl Loss {
    /// Creates the state. `record` runs in `tasks` once a caller has the notice. Must be called in a tokio runtime.
    pub(crate) fn new(reported: Option<(Notice, Record)>, tasks: TaskTracker) -> Self {
        let (notice, record) = reported.unzip();
        Self { state: Mutex::new(State { notice, record }), tasks, runtime: Handle::current() }
    }

    fn notice(&self) -> Option<Notice> {
        self.state().notice.clone()
    }

    fn begin(&self, notice: Notice) {
        self.state().notice.get_or_insert(notice);
    }

    /// Marks the notice as delivered, starts the record and returns the notice.
    fn given(&self) -> Option<Notice> {
        let State { notice, record } = std::mem::take(&mut *self.state());
        if let Some(record) = record {
            self.tasks.spawn_on(record, &self.runtime);
        }
        notice
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loss").field("notice", &self.notice()).finish_non_exhaustive()
    }
}

/// Reports the loss in the calls of one clone of a sandbox.
#[derive(Clone, Debug)]
pub(super) struct Reporter {
    loss: Arc<Loss>,
    manner: Manner,
}

#[derive(Clone, Debug)]
enum Manner {
    /// The report is delivered when a call returns it.
    Returned,
    /// The report is delivered when the caller confirms its results with a [`Receipt`]. The flag is set if one of them
    /// carried the report.
    Receipt(Arc<AtomicBool>),
    /// Calls do not report a loss.
    Silent,
}

impl Reporter {
    pub(super) fn new(loss: Loss) -> Self {
        Self { loss: Arc::new(loss), manner: Manner::Returned }
    }

    /// Returns a reporter for calls whose results no caller reads.
    pub(super) fn silent(&self) -> Self {
        Self { manner: Manner::Silent, ..self.clone() }
    }

    /// Returns a reporter for calls whose results take longer to reach their caller. None if there is nothing to
    /// report.
    pub(super) fn with_receipt(&self) -> Option<(Self, Receipt)> {
        self.notice()?;
        let carried = Arc::new(AtomicBool::new(false));
        let receipt = Receipt { loss: self.loss.clone(), carried: carried.clone() };
        Some((Self { manner: Manner::Receipt(carried), ..self.clone() }, receipt))
    }

    /// Returns the notice that a new call has to carry.
    pub(super) fn notice(&self) -> Option<Notice> {
        if matches!(self.manner, Manner::Silent) { None } else { self.loss.notice() }
    }

    /// Returns the error of a call whose result has no room for a notice.
    pub(super) fn refusal(&self) -> Option<Error> {
        self.notice().map(Error::Replaced)
    }

    /// Notes that the result that is returned now carries the notice.
    pub(super) fn carried(&self) {
        match &self.manner {
            Manner::Returned => drop(self.loss.given()),
            Manner::Receipt(carried) => carried.store(true, Ordering::Relaxed),
            Manner::Silent => {}
        }
    }

    /// Returns the notice and marks it as delivered.
    pub(super) fn take(&self) -> Option<Notice> {
        self.loss.given()
    }

    /// Sets the notice, unless one is pending.
    pub(super) fn begin(&self, notice: Notice) {
        self.loss.begin(notice);
    }
}

/// Confirms that a caller has the results of a sandbox's calls. If it is dropped instead, the next call reports the
/// loss again.
#[derive(Debug)]
#[must_use]
pub struct Receipt {
    loss: Arc<Loss>,
    carried: Arc<AtomicBool>,
}

impl Receipt {
    /// Confirms the results.
    pub fn given(self) {
        if self.carried.load(Ordering::Relaxed) {
            self.loss.given();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    const REPLACED: Notice = Notice::Replaced { kept: Vec::new() };

    /// Returns a reporter, its tasks, and a counter of the recorded reports.
    fn reporter() -> (Reporter, TaskTracker, Arc<AtomicUsize>) {
        let (recorded, tasks) = (Arc::new(AtomicUsize::new(0)), TaskTracker::new());
        let record = recorded.clone();
        let record: Record = Box::pin(async move {
            record.fetch_add(1, Ordering::Relaxed);
        });
        (Reporter::new(Loss::new(Some((REPLACED, record)), tasks.clone())), tasks, recorded)
    }

    async fn count(tasks: &TaskTracker, recorded: &AtomicUsize) -> usize {
        tasks.close();
        tasks.wait().await;
        recorded.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn loss_is_reported_until_a_call_returns_it_and_recorded_once() {
        let (reporter, tasks, recorded) = reporter();
        assert_eq!((reporter.notice(), reporter.clone().notice()), (Some(REPLACED), Some(REPLACED)));
        assert_eq!(count(&tasks, &recorded).await, 0, "two calls have begun, and none has returned");
        reporter.carried();
        reporter.carried();
        assert_eq!((reporter.notice(), count(&tasks, &recorded).await), (None, 1));
        assert!(reporter.with_receipt().is_none());
    }

    #[tokio::test]
    async fn undelivered_report_is_repeated() {
        let (reporter, tasks, recorded) = reporter();
        let (call, receipt) = reporter.with_receipt().unwrap();
        assert!(matches!(call.refusal(), Some(Error::Replaced(_))));
        call.carried();
        drop(receipt);
        assert_eq!((reporter.notice(), count(&tasks, &recorded).await), (Some(REPLACED), 0));

        let (call, receipt) = reporter.with_receipt().unwrap();
        call.carried();
        receipt.given();
        assert_eq!((reporter.notice(), count(&tasks, &recorded).await), (None, 1));
    }

    #[tokio::test]
    async fn receipt_without_a_report_records_nothing() {
        let (reporter, tasks, recorded) = reporter();
        let (_, receipt) = reporter.with_receipt().unwrap();
        receipt.given();
        let silent = reporter.silent();
        assert!(silent.notice().is_none() && silent.refusal().is_none());
        silent.carried();
        assert_eq!((reporter.notice(), count(&tasks, &recorded).await), (Some(REPLACED), 0));
    }
}
