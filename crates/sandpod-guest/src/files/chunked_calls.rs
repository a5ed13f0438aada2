//! Calls whose content arrives in parts. Each runs once, however often its stream breaks.
//!
//! The call's record begins with the first stream and waits for the complete content. If the stream is lost, the record
//! keeps waiting; the client's repeat joins it and sends the content again from the beginning. A repeat of a call
//! that has ended is answered at once.

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
use crate::session::records::{CallContext, Records};

/// Calls that wait for their content, which becomes a `T`.
pub(super) struct ChunkedCalls<T> {
    records: Records,
    waiting: Arc<Mutex<HashMap<Call, Waiting<T>>>>,
    /// Error message for a call whose content never became complete.
    incomplete: &'static str,
}

/// Session and number.
type Call = (String, u64);
/// Complete content, or the reason why it never will be.
pub(super) type Content<T> = Result<T, Failure>;

type BoxFuture<M> = Pin<Box<dyn Future<Output = Result<M, Failure>> + Send>>;

struct Waiting<T> {
    content: oneshot::Sender<Content<T>>,
    /// Cancels the stream that sends the content when another one takes over.
    stream: CancellationToken,
}

impl<T: Send + 'static> ChunkedCalls<T> {
    pub(super) fn new(records: Records, incomplete: &'static str) -> Self {
        Self { records, waiting: Arc::default(), incomplete }
    }

    /// Receives the content, and does the call once it is complete. An error of `incoming` itself means that the stream
    /// was lost.
    pub(super) async fn take<M: Message + Default + 'static>(
        &self,
        operation: Option<Operation>,
        incoming: impl Future<Output = Result<Content<T>, Status>> + Send,
        finish: impl FnOnce(T) -> Result<M, Failure> + Send + 'static,
    ) -> Result<M, Status> {
        let call = operation.as_ref().map(|operation| (operation.session.clone(), operation.number));
        let call = call.unwrap_or_default();
        let outcome = self.records.once(operation, |context| self.begin(call.clone(), context, finish));
        tokio::select! {
            biased; // the record may have the answer already
            outcome = outcome => Ok(outcome?),
            lost = self.deliver(&call, incoming) => Err(lost),
        }
    }

    /// Begins the call's record, which waits for the content and then does the call.
    fn begin<M: Send + 'static>(
        &self,
        call: Call,
        call_context: CallContext,
        finish: impl FnOnce(T) -> Result<M, Failure> + Send + 'static,
    ) -> BoxFuture<M> {
        let (sender, content) = oneshot::channel();
        let stream = CancellationToken::new();
        lock(&self.waiting).insert(call.clone(), Waiting { content: sender, stream });
        let (all_waiting, incomplete) = (self.waiting.clone(), self.incomplete);
        Box::pin(async move {
            let content = tokio::select! {
                content = content => content.ok(),
                () = call_context.cancelled() => None,
                () = call_context.abandoned(limits::ORPHAN_GRACE) => None,
            };
            lock(&all_waiting).remove(&call);
            let content = content.unwrap_or_else(|| Err(Failure::new(ErrorCode::Corrupt, incomplete)))?;
            blocking(|| finish(content)).await
        })
    }

    /// Passes the content to the record. Returns only if the stream is lost.
    async fn deliver(
        &self,
        call: &Call,
        incoming: impl Future<Output = Result<Content<T>, Status>> + Send,
    ) -> Status {
        // If no record waits, it has its answer, or soon will.
        let Some(stream) = self.take_over(call) else { return future::pending().await };
        let content = tokio::select! {
            content = incoming => match content {
                Ok(content) => content,
                Err(lost) => return lost,
            },
            () = stream.cancelled() => return Status::unavailable("another stream sends this call's content"),
        };
        if let Some(waiting) = lock(&self.waiting).remove(call) {
            drop(waiting.content.send(content)); // the record may be gone
        }
        future::pending().await
    }

    /// Cancels the stream that sent the content before: its loss may not have been detected yet.
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
