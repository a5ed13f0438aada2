//! What became of each mutating call, so that it is done once however often it is asked for.
//!
//! A call is named by its session and its number in it. The first request for it starts the work,
//! in a task of its own that no lost stream ends; every further one waits for the same outcome or
//! finds it here. A record goes when the client has its answer, or when there are too many.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use sandpod_protocol::v1::{ErrorCode, Operation};
use sandpod_protocol::{Failure, limits};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::answered::Answered;

/// The records of all sessions.
#[derive(Clone, Default)]
pub(crate) struct Records(Arc<Mutex<Sessions>>);

#[derive(Default)]
struct Sessions {
    by_name: HashMap<String, Session>,
    /// Counts uses, to find the session that was silent longest.
    clock: u64,
}

#[derive(Default)]
struct Session {
    calls: BTreeMap<u64, Call>,
    bytes: usize,
    /// The highest number of which the record was dropped before the client had its answer.
    forgotten_up_to: u64,
    answered: Answered,
    /// Calls that were cancelled before they arrived.
    cancelled: BTreeSet<u64>,
    used: u64,
}

/// One call: running until `outcome` holds something.
struct Call {
    outcome: watch::Receiver<Option<Outcome>>,
    waiters: Arc<watch::Sender<usize>>,
    cancel: CancellationToken,
}

type Outcome = Result<Bytes, Failure>;
/// What a call does, whatever it is: one kind of task has less code than one for each kind of call.
type Work = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// What the work of a call may ask about those who wait for it.
pub(crate) struct Watchers {
    cancel: CancellationToken,
    waiters: watch::Receiver<usize>,
}

impl Watchers {
    /// Resolves when the client has cancelled the call.
    pub(crate) async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// Resolves when nobody has waited for the call for as long as `grace`, or nobody can any more: it has no record.
    pub(crate) async fn abandoned(&self, grace: Duration) {
        let mut waiters = self.waiters.clone();
        while waiters.wait_for(|count| *count == 0).await.is_ok() {
            let returned = tokio::time::timeout(grace, waiters.wait_for(|count| *count > 0)).await;
            if !matches!(returned, Ok(Ok(_))) {
                return;
            }
        }
    }
}

/// Counts one who waits, until it is dropped.
struct Waiting(Arc<watch::Sender<usize>>);

impl Waiting {
    fn on(waiters: &Arc<watch::Sender<usize>>) -> Self {
        waiters.send_modify(|count| *count += 1);
        Self(waiters.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Records {
    /// Greets a session; answers whether it is known already.
    pub(crate) fn greet(&self, session: &str) -> bool {
        let mut sessions = self.lock();
        let known = sessions.by_name.contains_key(session);
        sessions.session(session);
        known
    }

    /// Does the work of `operation` once and returns its outcome, now or whenever it is asked again.
    pub(crate) async fn once<M, W, F>(&self, operation: Option<Operation>, work: W) -> Result<M, Failure>
    where
        M: Message + Default,
        W: FnOnce(Watchers) -> F,
        F: Future<Output = Result<M, Failure>> + Send + 'static,
    {
        let operation = operation.filter(|operation| operation.number > 0 && !operation.session.is_empty());
        let operation = operation.ok_or_else(|| {
            Failure::new(
                ErrorCode::InvalidArgument,
                "a call that changes something needs a session and a number",
            )
        })?;
        let work = |watchers| -> Work {
            let work = work(watchers);
            Box::pin(async move { work.await.map(|message| Bytes::from(message.encode_to_vec())) })
        };
        let (mut outcome, _waiting) = self.join(&operation, Box::new(work))?;
        let outcome = outcome.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
        let bytes = outcome.ok().flatten().unwrap_or_else(|| {
            Err(Failure::new(ErrorCode::Internal, "the guest failed while it worked on this call"))
        })?;
        M::decode(bytes).map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))
    }

    /// Tells the work of a call to end, also if the call arrives only later.
    pub(crate) fn cancel(&self, session: &str, number: u64) {
        let mut sessions = self.lock();
        let Some(session) = sessions.by_name.get_mut(session) else { return };
        match session.calls.get(&number) {
            Some(call) => call.cancel.cancel(),
            None => session.cancel_early(number),
        }
    }

    /// Finds the call or starts it.
    fn join(
        &self,
        operation: &Operation,
        work: Box<dyn FnOnce(Watchers) -> Work + '_>,
    ) -> Result<(watch::Receiver<Option<Outcome>>, Waiting), Failure> {
        let mut sessions = self.lock();
        let known = sessions.by_name.contains_key(&operation.session);
        let session = sessions.session(&operation.session);
        session.drop_answered(operation);
        if let Some(call) = session.calls.get(&operation.number) {
            return Ok((call.outcome.clone(), Waiting::on(&call.waiters)));
        }
        let forgotten = operation.repeated && (!known || operation.number <= session.forgotten_up_to);
        if forgotten || session.answered.has(operation.number) {
            return Err(Failure::new(
                ErrorCode::OutcomeUnknown,
                "the guest has no record of this call any more: it may or may not have been done",
            ));
        }
        let (sender, outcome) = watch::channel(None);
        let waiters = Arc::new(watch::channel(0).0);
        let cancel = CancellationToken::new();
        if session.cancelled.remove(&operation.number) {
            cancel.cancel();
        }
        let work = work(Watchers { cancel: cancel.clone(), waiters: waiters.subscribe() });
        let waiting = Waiting::on(&waiters);
        session.calls.insert(operation.number, Call { outcome: outcome.clone(), waiters, cancel });
        let (records, name, number) = (self.clone(), operation.session.clone(), operation.number);
        tokio::spawn(async move {
            sender.send_replace(Some(work.await));
            records.keep(&name, number);
        });
        Ok((outcome, waiting))
    }

    /// Counts a finished call's answer, and drops the oldest ones where they are too many.
    fn keep(&self, session: &str, number: u64) {
        if let Some(session) = self.lock().by_name.get_mut(session) {
            // The client may have given it up meanwhile: then it has no record that could go.
            session.bytes += session.calls.get(&number).map_or(0, Call::size);
            session.shrink();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sessions {
    fn session(&mut self, name: &str) -> &mut Session {
        self.clock += 1;
        if !self.by_name.contains_key(name) && self.by_name.len() >= limits::MAX_SESSIONS {
            let idle = self.by_name.iter().filter(|(_, session)| !session.is_busy());
            let oldest = idle.min_by_key(|(_, session)| session.used).map(|(name, _)| name.clone());
            oldest.map(|name| self.by_name.remove(&name));
        }
        let session = self.by_name.entry(name.to_owned()).or_default();
        session.used = self.clock;
        session
    }
}

impl Session {
    fn is_busy(&self) -> bool {
        self.calls.values().any(Call::runs)
    }

    fn drop_answered(&mut self, operation: &Operation) {
        self.answered.learn(operation);
        let known = self.calls.range(..=self.answered.up_to()).map(|(number, _)| *number);
        let answered: Vec<_> = known.filter(|number| self.answered.has(*number)).collect();
        for number in answered {
            self.remove(number);
        }
        self.cancelled.retain(|number| !self.answered.has(*number));
    }

    /// Streams and their calls overtake each other. Of too many the oldest have arrived or never will.
    fn cancel_early(&mut self, number: u64) {
        if !self.answered.has(number) {
            self.cancelled.insert(number);
        }
        if self.cancelled.len() > limits::MAX_WAITING {
            self.cancelled.pop_first();
        }
    }

    fn remove(&mut self, number: u64) {
        let size = self.calls.remove(&number).map_or(0, |call| call.size());
        self.bytes -= size.min(self.bytes);
    }

    fn shrink(&mut self) {
        while self.calls.len() > limits::MAX_RECORDS || self.bytes > limits::MAX_RECORD_BYTES {
            let Some((&number, _)) = self.calls.iter().find(|(_, call)| !call.runs()) else { return };
            self.remove(number);
            self.forgotten_up_to = self.forgotten_up_to.max(number);
        }
    }
}

impl Call {
    fn runs(&self) -> bool {
        self.outcome.borrow().is_none()
    }

    fn size(&self) -> usize {
        match &*self.outcome.borrow() {
            Some(Ok(bytes)) => bytes.len(),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use sandpod_protocol::v1::EditResponse;

    use super::*;

    fn operation(number: u64) -> Operation {
        Operation { session: "s".to_owned(), number, ..Operation::default() }
    }

    fn repeat(number: u64) -> Operation {
        Operation { repeated: true, ..operation(number) }
    }

    async fn count(records: &Records, operation: Operation, runs: &Arc<AtomicUsize>) -> Result<u64, Failure> {
        let runs = runs.clone();
        let work = |_| async move {
            runs.fetch_add(1, Ordering::SeqCst);
            Ok(EditResponse { occurrences: 7, atomic: true })
        };
        records.once(Some(operation), work).await.map(|response: EditResponse| response.occurrences)
    }

    #[tokio::test]
    async fn a_repeated_call_is_answered_from_its_record_and_not_done_again() {
        let (records, runs) = (Records::default(), Arc::default());
        assert_eq!(count(&records, operation(1), &runs).await.unwrap(), 7);
        assert_eq!(count(&records, repeat(1), &runs).await.unwrap(), 7);
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_repeat_of_a_call_that_never_arrived_is_done() {
        let (records, runs) = (Records::default(), Arc::default());
        records.greet("s");
        assert_eq!(count(&records, repeat(1), &runs).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn a_repeat_in_a_session_that_the_guest_does_not_know_has_an_unknown_outcome() {
        let (records, runs) = (Records::default(), Arc::default());
        let failure = count(&records, repeat(1), &runs).await.unwrap_err();
        assert_eq!(failure.code(), ErrorCode::OutcomeUnknown);
        assert_eq!(runs.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn a_repeat_of_a_forgotten_call_has_an_unknown_outcome() {
        let (records, runs) = (Records::default(), Arc::default());
        for number in 1..=(limits::MAX_RECORDS as u64 + 5) {
            count(&records, operation(number), &runs).await.unwrap();
        }
        let failure = count(&records, repeat(1), &runs).await.unwrap_err();
        assert_eq!(failure.code(), ErrorCode::OutcomeUnknown);
    }

    #[tokio::test]
    async fn answered_calls_leave_no_record() {
        let (records, runs) = (Records::default(), Arc::default());
        count(&records, operation(1), &runs).await.unwrap();
        count(&records, Operation { answered_up_to: 1, ..operation(2) }, &runs).await.unwrap();
        assert_eq!(records.lock().by_name["s"].calls.keys().collect::<Vec<_>>(), [&2]);
    }

    #[tokio::test]
    async fn a_call_keeps_its_record_however_many_came_after_it_and_were_answered() {
        let (records, runs) = (Records::default(), Arc::default());
        count(&records, operation(1), &runs).await.unwrap();
        for number in 2..=(2 * limits::MAX_RECORDS as u64) {
            let waiting = vec![1, number];
            count(&records, Operation { waiting, ..operation(number) }, &runs).await.unwrap();
        }
        assert!(records.lock().by_name["s"].calls.len() <= 2);
        assert_eq!(count(&records, repeat(1), &runs).await.unwrap(), 7);
        assert_eq!(runs.load(Ordering::SeqCst), 2 * limits::MAX_RECORDS);
    }

    #[tokio::test]
    async fn a_call_that_comes_late_when_its_repeat_was_answered_is_not_done_again() {
        let (records, runs) = (Records::default(), Arc::default());
        records.greet("s");
        count(&records, repeat(1), &runs).await.unwrap();
        count(&records, Operation { answered_up_to: 1, ..operation(2) }, &runs).await.unwrap();
        let failure = count(&records, operation(1), &runs).await.unwrap_err();
        assert_eq!(failure.code(), ErrorCode::OutcomeUnknown);
        assert_eq!(runs.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn work_goes_on_when_the_one_who_waits_leaves() {
        let records = Records::default();
        let (done, was_done) = tokio::sync::oneshot::channel();
        let work = |_| async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let _ = done.send(());
            Ok(EditResponse::default())
        };
        let call = records.once::<EditResponse, _, _>(Some(operation(1)), work);
        assert!(tokio::time::timeout(Duration::from_millis(1), call).await.is_err());
        was_done.await.unwrap();
    }

    /// Asks for work that waits until it is abandoned, and waits no longer for it; the result resolves when it learns that.
    async fn give_up(records: &Records) -> tokio::sync::oneshot::Receiver<()> {
        let (done, was_abandoned) = tokio::sync::oneshot::channel();
        let work = |watchers: Watchers| async move {
            watchers.abandoned(Duration::from_secs(60)).await;
            let _ = done.send(());
            Ok(EditResponse::default())
        };
        let call = records.once::<EditResponse, _, _>(Some(operation(1)), work);
        assert!(tokio::time::timeout(Duration::from_secs(1), call).await.is_err());
        was_abandoned
    }

    #[tokio::test(start_paused = true)]
    async fn work_learns_that_nobody_has_waited_for_it_for_a_while() {
        let records = Records::default();
        let was_abandoned = give_up(&records).await;
        was_abandoned.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn work_learns_that_nobody_can_wait_for_it_any_more() {
        let records = Records::default();
        let was_abandoned = give_up(&records).await;
        let next = Operation { answered_up_to: 1, ..operation(2) };
        count(&records, next, &Arc::default()).await.unwrap();
        tokio::time::timeout(Duration::from_secs(1), was_abandoned).await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_was_cancelled_before_it_arrived_learns_it_at_once() {
        let records = Records::default();
        records.greet("s");
        records.cancel("s", 1);
        let work = |watchers: Watchers| async move {
            watchers.cancelled().await;
            Ok(EditResponse::default())
        };
        let call = records.once::<EditResponse, _, _>(Some(operation(1)), work);
        tokio::time::timeout(Duration::from_secs(1), call).await.unwrap().unwrap();
        for number in 2..(2 * limits::MAX_WAITING as u64) {
            records.cancel("s", number);
        }
        assert_eq!(records.lock().by_name["s"].cancelled.len(), limits::MAX_WAITING);
        let next = Operation { answered_up_to: 10_000, ..operation(10_001) };
        count(&records, next, &Arc::default()).await.unwrap();
        assert!(records.lock().by_name["s"].cancelled.is_empty());
    }

    #[tokio::test]
    async fn an_answer_that_comes_when_its_record_is_gone_counts_for_nothing() {
        let records = Records::default();
        let (finish, finished) = tokio::sync::oneshot::channel::<()>();
        let (done, was_done) = tokio::sync::oneshot::channel();
        let work = |_| async move {
            let _ = finished.await;
            let _ = done.send(());
            Ok(EditResponse { occurrences: 7, atomic: true })
        };
        let call = records.once::<EditResponse, _, _>(Some(operation(1)), work);
        assert!(tokio::time::timeout(Duration::from_millis(1), call).await.is_err());
        let next = Operation { answered_up_to: 1, ..operation(2) };
        count(&records, next, &Arc::default()).await.unwrap();
        let before = records.lock().by_name["s"].bytes;
        drop(finish);
        was_done.await.unwrap();
        tokio::task::yield_now().await;
        assert_eq!(records.lock().by_name["s"].bytes, before);
    }
}
