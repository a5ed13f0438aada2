//! Records of mutating calls, so that each runs once, however often it is requested.
//!
//! A call is identified by its session and its number in it. The first request starts the work in a task of its own,
//! which continues when a stream is lost; further requests wait for the same outcome or get the recorded one.
//! A record is dropped when the client has acknowledged the call, or when there are too many.

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

use super::acknowledged::Acknowledged;

/// Records of all sessions.
#[derive(Clone, Default)]
pub(crate) struct Records(Arc<Mutex<Sessions>>);

#[derive(Default)]
struct Sessions {
    by_name: HashMap<String, Session>,
    /// Counts uses, to find the least recently used session.
    clock: u64,
}

#[derive(Default)]
struct Session {
    calls: BTreeMap<u64, Call>,
    bytes: usize,
    /// Highest number whose record was evicted before the client had the response.
    evicted_up_to: u64,
    acknowledged: Acknowledged,
    /// Calls that were cancelled before they arrived.
    cancelled: BTreeSet<u64>,
    used: u64,
}

/// One call, which runs until `outcome` has a value.
struct Call {
    outcome: watch::Receiver<Option<Outcome>>,
    waiters: Arc<watch::Sender<usize>>,
    cancel: CancellationToken,
}

type Outcome = Result<Bytes, Failure>;
/// The work of a call. Boxed, because each type of task is compiled separately.
type Work = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// State of a call that its work can observe.
pub(crate) struct CallContext {
    cancel: CancellationToken,
    waiters: watch::Receiver<usize>,
}

impl CallContext {
    /// Resolves when the client has cancelled the call.
    pub(crate) async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// Resolves when no request has waited for the call for `grace`, or when its record is gone and none can.
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

/// Counts a waiting request until it is dropped.
struct WaiterGuard(Arc<watch::Sender<usize>>);

impl WaiterGuard {
    fn on(waiters: &Arc<watch::Sender<usize>>) -> Self {
        waiters.send_modify(|count| *count += 1);
        Self(waiters.clone())
    }
}

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Records {
    /// Opens a session. Returns whether it existed already.
    pub(crate) fn open_session(&self, session: &str) -> bool {
        let mut sessions = self.lock();
        let known = sessions.by_name.contains_key(session);
        sessions.session(session);
        known
    }

    /// Runs the work of `operation` once, and returns its outcome for this and each further request.
    pub(crate) async fn once<M, W, F>(&self, operation: Option<Operation>, work: W) -> Result<M, Failure>
    where
        M: Message + Default,
        W: FnOnce(CallContext) -> F,
        F: Future<Output = Result<M, Failure>> + Send + 'static,
    {
        let operation = operation.filter(|operation| operation.number > 0 && !operation.session.is_empty());
        let operation = operation.ok_or_else(|| {
            Failure::new(
                ErrorCode::InvalidArgument,
                "a call that changes something needs a session and a number",
            )
        })?;
        let work = |context| -> Work {
            let work = work(context);
            Box::pin(async move { work.await.map(|message| Bytes::from(message.encode_to_vec())) })
        };
        let (mut outcome, _waiting) = self.attach_or_start(&operation, Box::new(work))?;
        let outcome = outcome.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
        let bytes = outcome
            .ok()
            .flatten()
            .unwrap_or_else(|| Err(Failure::new(ErrorCode::Internal, "the guest failed during this call")))?;
        M::decode(bytes).map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))
    }

    /// Cancels a call, also if it has not arrived yet.
    pub(crate) fn cancel(&self, session: &str, number: u64) {
        let mut sessions = self.lock();
        let Some(session) = sessions.by_name.get_mut(session) else { return };
        match session.calls.get(&number) {
            Some(call) => call.cancel.cancel(),
            None => session.cancel_early(number),
        }
    }

    /// Finds the call or starts it.
    fn attach_or_start(
        &self,
        operation: &Operation,
        work: Box<dyn FnOnce(CallContext) -> Work + '_>,
    ) -> Result<(watch::Receiver<Option<Outcome>>, WaiterGuard), Failure> {
        let mut sessions = self.lock();
        let known = sessions.by_name.contains_key(&operation.session);
        let session = sessions.session(&operation.session);
        session.drop_answered(operation);
        if let Some(call) = session.calls.get(&operation.number) {
            return Ok((call.outcome.clone(), WaiterGuard::on(&call.waiters)));
        }
        let is_lost = operation.repeated && (!known || operation.number <= session.evicted_up_to);
        if is_lost || session.acknowledged.contains(operation.number) {
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
        let work = work(CallContext { cancel: cancel.clone(), waiters: waiters.subscribe() });
        let waiting = WaiterGuard::on(&waiters);
        session.calls.insert(operation.number, Call { outcome: outcome.clone(), waiters, cancel });
        let (records, name, number) = (self.clone(), operation.session.clone(), operation.number);
        tokio::spawn(async move {
            sender.send_replace(Some(work.await));
            records.finish(&name, number);
        });
        Ok((outcome, waiting))
    }

    /// Counts the size of a finished call's response, and evicts the oldest records if there are too many.
    fn finish(&self, session: &str, number: u64) {
        if let Some(session) = self.lock().by_name.get_mut(session) {
            // The client may have acknowledged the call meanwhile, so that there is no record.
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
        self.calls.values().any(Call::is_running)
    }

    fn drop_answered(&mut self, operation: &Operation) {
        self.acknowledged.update(operation);
        let known = self.calls.range(..=self.acknowledged.up_to()).map(|(number, _)| *number);
        let acknowledged: Vec<_> = known.filter(|number| self.acknowledged.contains(*number)).collect();
        for number in acknowledged {
            self.remove(number);
        }
        self.cancelled.retain(|number| !self.acknowledged.contains(*number));
    }

    /// Records a cancel that overtook its call. If there are too many, the oldest calls have arrived or never will.
    fn cancel_early(&mut self, number: u64) {
        if !self.acknowledged.contains(number) {
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
            let Some((&number, _)) = self.calls.iter().find(|(_, call)| !call.is_running()) else { return };
            self.remove(number);
            self.evicted_up_to = self.evicted_up_to.max(number);
        }
    }
}

impl Call {
    fn is_running(&self) -> bool {
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

    async fn count(
        records: &Records,
        operation: Operation,
        is_running: &Arc<AtomicUsize>,
    ) -> Result<u64, Failure> {
        let is_running = is_running.clone();
        let work = |_| async move {
            is_running.fetch_add(1, Ordering::SeqCst);
            Ok(EditResponse { occurrences: 7, atomic: true })
        };
        records.once(Some(operation), work).await.map(|response: EditResponse| response.occurrences)
    }

    #[tokio::test]
    async fn a_repeated_call_is_answered_from_its_record() {
        let (records, is_running) = (Records::default(), Arc::default());
        assert_eq!(count(&records, operation(1), &is_running).await.unwrap(), 7);
        assert_eq!(count(&records, repeat(1), &is_running).await.unwrap(), 7);
        assert_eq!(is_running.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_repeat_of_a_call_that_never_arrived_runs() {
        let (records, is_running) = (Records::default(), Arc::default());
        records.open_session("s");
        assert_eq!(count(&records, repeat(1), &is_running).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn a_repeat_in_an_unknown_session_has_an_unknown_outcome() {
        let (records, is_running) = (Records::default(), Arc::default());
        let failure = count(&records, repeat(1), &is_running).await.unwrap_err();
        assert_eq!(failure.code(), ErrorCode::OutcomeUnknown);
        assert_eq!(is_running.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn a_repeat_of_an_evicted_call_has_an_unknown_outcome() {
        let (records, is_running) = (Records::default(), Arc::default());
        for number in 1..=(limits::MAX_RECORDS as u64 + 5) {
            count(&records, operation(number), &is_running).await.unwrap();
        }
        let failure = count(&records, repeat(1), &is_running).await.unwrap_err();
        assert_eq!(failure.code(), ErrorCode::OutcomeUnknown);
    }

    #[tokio::test]
    async fn acknowledged_calls_have_no_record() {
        let (records, is_running) = (Records::default(), Arc::default());
        count(&records, operation(1), &is_running).await.unwrap();
        count(&records, Operation { answered_up_to: 1, ..operation(2) }, &is_running).await.unwrap();
        assert_eq!(records.lock().by_name["s"].calls.keys().collect::<Vec<_>>(), [&2]);
    }

    #[tokio::test]
    async fn a_record_survives_many_later_acknowledged_calls() {
        let (records, is_running) = (Records::default(), Arc::default());
        count(&records, operation(1), &is_running).await.unwrap();
        for number in 2..=(2 * limits::MAX_RECORDS as u64) {
            let waiting = vec![1, number];
            count(&records, Operation { waiting, ..operation(number) }, &is_running).await.unwrap();
        }
        assert!(records.lock().by_name["s"].calls.len() <= 2);
        assert_eq!(count(&records, repeat(1), &is_running).await.unwrap(), 7);
        assert_eq!(is_running.load(Ordering::SeqCst), 2 * limits::MAX_RECORDS);
    }

    #[tokio::test]
    async fn a_late_request_for_an_acknowledged_call_does_not_run() {
        let (records, is_running) = (Records::default(), Arc::default());
        records.open_session("s");
        count(&records, repeat(1), &is_running).await.unwrap();
        count(&records, Operation { answered_up_to: 1, ..operation(2) }, &is_running).await.unwrap();
        let failure = count(&records, operation(1), &is_running).await.unwrap_err();
        assert_eq!(failure.code(), ErrorCode::OutcomeUnknown);
        assert_eq!(is_running.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn work_continues_when_its_request_is_dropped() {
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

    /// Requests work that waits until it is abandoned, and stops waiting. The returned receiver resolves when it is.
    async fn give_up(records: &Records) -> tokio::sync::oneshot::Receiver<()> {
        let (done, was_abandoned) = tokio::sync::oneshot::channel();
        let work = |context: CallContext| async move {
            context.abandoned(Duration::from_secs(60)).await;
            let _ = done.send(());
            Ok(EditResponse::default())
        };
        let call = records.once::<EditResponse, _, _>(Some(operation(1)), work);
        assert!(tokio::time::timeout(Duration::from_secs(1), call).await.is_err());
        was_abandoned
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_abandoned_after_the_grace_period() {
        let records = Records::default();
        let was_abandoned = give_up(&records).await;
        was_abandoned.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_abandoned_when_its_record_is_dropped() {
        let records = Records::default();
        let was_abandoned = give_up(&records).await;
        let next = Operation { answered_up_to: 1, ..operation(2) };
        count(&records, next, &Arc::default()).await.unwrap();
        tokio::time::timeout(Duration::from_secs(1), was_abandoned).await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancel_that_overtakes_its_call_takes_effect() {
        let records = Records::default();
        records.open_session("s");
        records.cancel("s", 1);
        let work = |context: CallContext| async move {
            context.cancelled().await;
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
    async fn a_response_without_a_record_is_not_counted() {
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
