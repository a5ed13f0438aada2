//! Calls whose content arrives in parts, done once however often their stream breaks.
//!
//! The call's record begins with the first stream and waits for the whole content. A stream that is lost
//! on the way leaves the record waiting; the repeat joins it and brings the content again from the
//! beginning. A repeat of a call that is done is answered at once.

use std::collections::HashMap;
use std::future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prost::Message;
use sandpod_protocol::v1::{ErrorCode, Operation};
use sandpod_protocol::{Failure, limits};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::service::blocking;
use crate::session::records::{Records, Watchers};

/// The calls whose content is on its way; it becomes a `T`.
pub(super) struct Arrivals<T> {
    records: Records,
    waiting: Arc<Mutex<HashMap<Call, Waiting<T>>>>,
    /// What is said of a call whose content never came.
    never_whole: &'static str,
}

/// Session and number.
type Call = (String, u64);
/// Content that is whole, or the reason why it never will be.
pub(super) type Content<T> = Result<T, Failure>;

type BoxFuture<M> = Pin<Box<dyn Future<Output = Result<M, Failure>> + Send>>;

struct Waiting<T> {
    content: oneshot::Sender<Content<T>>,
    /// Ends the stream that brings the content when another one does.
    stream: CancellationToken,
}

impl<T: Send + 'static> Arrivals<T> {
    pub(super) fn new(records: Records, never_whole: &'static str) -> Self {
        Self { records, waiting: Arc::default(), never_whole }
    }

    /// Takes what arrives, and does the call once it is whole. An error of `arriving` itself is a lost
    /// stream.
    pub(super) async fn take<M: Message + Default + 'static>(
        &self,
        operation: Option<Operation>,
        arriving: impl Future<Output = Result<Content<T>, Status>> + Send,
        finish: impl FnOnce(T) -> Result<M, Failure> + Send + 'static,
    ) -> Result<M, Status> {
        let call = operation.as_ref().map(|operation| (operation.session.clone(), operation.number));
        let call = call.unwrap_or_default();
        let outcome = self.records.once(operation, |watchers| self.begin(call.clone(), watchers, finish));
        tokio::select! {
            biased; // the record may have the answer
            outcome = outcome => Ok(outcome?),
            lost = self.deliver(&call, arriving) => Err(lost),
        }
    }

    /// Begins the call's record: what is done when its content is here.
    fn begin<M: Send + 'static>(
        &self,
        call: Call,
        watchers: Watchers,
        finish: impl FnOnce(T) -> Result<M, Failure> + Send + 'static,
    ) -> BoxFuture<M> {
        let (sender, content) = oneshot::channel();
        let stream = CancellationToken::new();
        lock(&self.waiting).insert(call.clone(), Waiting { content: sender, stream });
        let (all_waiting, never_whole) = (self.waiting.clone(), self.never_whole);
        Box::pin(async move {
            let content = tokio::select! {
                content = content => content.ok(),
                () = watchers.cancelled() => None,
                () = watchers.abandoned(limits::ORPHAN_GRACE) => None,
            };
            lock(&all_waiting).remove(&call);
            let content = content.unwrap_or_else(|| Err(Failure::new(ErrorCode::Corrupt, never_whole)))?;
            blocking(|| finish(content)).await
        })
    }

    /// Brings the content to the record; returns only if the stream is lost.
    async fn deliver(
        &self,
        call: &Call,
        arriving: impl Future<Output = Result<Content<T>, Status>> + Send,
    ) -> Status {
        // Nobody waits: then the record has its answer, or soon will.
        let Some(stream) = self.take_over(call) else { return future::pending().await };
        let content = tokio::select! {
            content = arriving => match content {
                Ok(content) => content,
                Err(lost) => return lost,
            },
            () = stream.cancelled() => return Status::unavailable("another stream brings this call's content"),
        };
        if let Some(waiting) = lock(&self.waiting).remove(call) {
            drop(waiting.content.send(content)); // whoever waited has left
        }
        future::pending().await
    }

    /// Ends the stream that brought the content before: it may only not know yet that it is lost.
    fn take_over(&self, call: &Call) -> Option<CancellationToken> {
        let mut all_waiting = lock(&self.waiting);
        let waiting = all_waiting.get_mut(call)?;
        std::mem::take(&mut waiting.stream).cancel();
        Some(waiting.stream.clone())
    }

    #[cfg(test)]
    pub(super) fn waits(&self) -> bool {
        !lock(&self.waiting).is_empty()
    }
}

fn lock<T>(waiting: &Mutex<HashMap<Call, Waiting<T>>>) -> MutexGuard<'_, HashMap<Call, Waiting<T>>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}
