//! The report that a sandbox lost its files: every first call carries it until a caller has it.
//!
//! A [`Loss`] belongs to a handle and its clones, and each clone reports it through a [`Reporter`]. The loss is recorded as
//! reported only when a result with the report reaches its caller, so that a dropped call does not count.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use sandpod_client::{Error, Notice};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

/// Records on the sandbox's anchor that the loss was reported.
pub(crate) type Record = BoxFuture<'static, ()>;

/// What callers of a sandbox have to know before they go on, if anything.
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
    /// `tasks` runs `record` when a caller has the notice. It needs a runtime.
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

    /// A caller has it.
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

/// How the calls of one clone of a sandbox report its loss.
#[derive(Clone, Debug)]
pub(super) struct Reporter {
    loss: Arc<Loss>,
    manner: Manner,
}

#[derive(Clone, Debug)]
enum Manner {
    /// A call that returns the report has given it.
    Returned,
    /// The caller says when it has a result of these calls, which carried the report if this is set.
    Receipt(Arc<AtomicBool>),
    Silent,
}

impl Reporter {
    pub(super) fn new(loss: Loss) -> Self {
        Self { loss: Arc::new(loss), manner: Manner::Returned }
    }

    /// For calls whose results nobody reads.
    pub(super) fn silent(&self) -> Self {
        Self { manner: Manner::Silent, ..self.clone() }
    }

    /// For calls whose results are on their way for longer; none if there is nothing to report.
    pub(super) fn with_receipt(&self) -> Option<(Self, Receipt)> {
        self.notice()?;
        let carried = Arc::new(AtomicBool::new(false));
        let receipt = Receipt { loss: self.loss.clone(), carried: carried.clone() };
        Some((Self { manner: Manner::Receipt(carried), ..self.clone() }, receipt))
    }

    /// What a call that begins now has to carry.
    pub(super) fn notice(&self) -> Option<Notice> {
        if matches!(self.manner, Manner::Silent) { None } else { self.loss.notice() }
    }

    /// Why a call is not done whose result has no room for a notice.
    pub(super) fn refusal(&self) -> Option<Error> {
        self.notice().map(Error::Replaced)
    }

    /// The result that is returned now carries the notice.
    pub(super) fn carried(&self) {
        match &self.manner {
            Manner::Returned => drop(self.loss.given()),
            Manner::Receipt(carried) => carried.store(true, Ordering::Relaxed),
            Manner::Silent => {}
        }
    }

    /// The notice for a caller that asks for it.
    pub(super) fn take(&self) -> Option<Notice> {
        self.loss.given()
    }

    /// From now on there is this to report.
    pub(super) fn begin(&self, notice: Notice) {
        self.loss.begin(notice);
    }
}

/// Says that a caller has the results of a sandbox's calls. Dropped without that, the next call reports again.
#[derive(Debug)]
#[must_use]
pub struct Receipt {
    loss: Arc<Loss>,
    carried: Arc<AtomicBool>,
}

impl Receipt {
    /// The caller has them.
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

    /// A reporter, and how often it was recorded that the loss was reported.
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
    async fn calls_report_a_loss_until_one_has_returned_it_and_then_it_is_recorded_once() {
        let (reporter, tasks, recorded) = reporter();
        assert_eq!((reporter.notice(), reporter.clone().notice()), (Some(REPLACED), Some(REPLACED)));
        assert_eq!(count(&tasks, &recorded).await, 0, "two calls have begun, and none has returned");
        reporter.carried();
        reporter.carried();
        assert_eq!((reporter.notice(), count(&tasks, &recorded).await), (None, 1));
        assert!(reporter.with_receipt().is_none());
    }

    #[tokio::test]
    async fn a_report_whose_result_never_reached_the_caller_is_given_again() {
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
    async fn a_call_that_did_not_carry_the_report_gives_none() {
        let (reporter, tasks, recorded) = reporter();
        let (_, receipt) = reporter.with_receipt().unwrap();
        receipt.given();
        let silent = reporter.silent();
        assert!(silent.notice().is_none() && silent.refusal().is_none());
        silent.carried();
        assert_eq!((reporter.notice(), count(&tasks, &recorded).await), (Some(REPLACED), 0));
    }
}
