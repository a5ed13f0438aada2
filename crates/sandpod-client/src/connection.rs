//! Connection to one guest: one stream for calls and a second one for bulk transfers, shared by all callers.
//!
//! A [`Connection`] opens a stream when a call needs one. Only one dial runs at a time, however many callers wait. An idle
//! stream is closed. The loss of a stream cancels no call: each call is sent again on the next stream, and a call that changes
//! something keeps its operation number, so that the guest answers it from its record. If the guest itself was lost, the
//! outcome of such a call is unknown and the call is not repeated.

mod attempts;
mod binding;
mod channel;
mod deadline;
mod operations;
mod retry_budget;
mod stream;
mod stream_limits;
mod upload;

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use backon::ExponentialBackoff;
use prost::Message;
use sandpod_protocol::limits;
use sandpod_protocol::v1::Operation;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status};

pub(crate) use attempts::{Attempts, CallSlot, STALL_LIMIT};
pub(crate) use channel::Channel;
pub(crate) use deadline::Deadline;
pub(crate) use operations::PendingOperation;
pub(crate) use stream::MAX_NAME_BYTES;

use crate::dial::Dialer;
use crate::error::{Error, Notice};
use crate::metrics::STREAMS;
use operations::Operations;
pub use stream::Greeting;
use stream::{OpenError, Stream};
use stream_limits::{STREAM_LIMITS, StreamLimits};

/// How long refusals are retried after an earlier dial succeeded. An API server that has just started forbids every request
/// until it has loaded its RBAC rules.
const REFUSAL_GRACE: Duration = Duration::from_secs(10);

/// Options of a [`Connection`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Total time that one call may wait for a stream.
    pub reconnect_timeout: Duration,
    /// Time after which a stream without calls is closed.
    pub idle_timeout: Duration,
    /// Observer of every call.
    pub observer: Option<Arc<dyn Observer>>,
}

/// Receives the beginning and the end of every call on a sandbox, whatever its outcome.
pub trait Observer: std::fmt::Debug + Send + Sync + 'static {
    /// Called when a call begins.
    fn begun(&self);
    /// Called when a call ends.
    fn ended(&self);
}

/// Reports one call to the observer: its beginning when created, its end when dropped.
pub(crate) struct Observed(Option<Arc<dyn Observer>>);

impl Observed {
    fn begin(observer: Option<Arc<dyn Observer>>) -> Self {
        if let Some(observer) = &observer {
            observer.begun();
        }
        Self(observer)
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        if let Some(observer) = &self.0 {
            observer.ended();
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            reconnect_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(300),
            observer: None,
        }
    }
}

/// A connection to one guest. Clones share it.
#[derive(Clone)]
pub struct Connection(Arc<Inner>);

struct Inner {
    dialer: Box<dyn Dialer>,
    options: Options,
    operations: Arc<Operations>,
    state: Mutex<State>,
    /// Held while a dial runs.
    dial_lock: tokio::sync::Mutex<DialState>,
    /// Number of dials begun.
    dials: AtomicU64,
    gone: CancellationToken,
    stream_limits: Arc<StreamLimits>,
}

/// Selects one of the two streams.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum StreamKind {
    Main,
    Bulk,
}

#[derive(Default)]
struct State {
    main: Option<Stream>,
    bulk: Option<Stream>,
    boot_id: Option<String>,
    /// The last Bind that was answered.
    bound: Option<binding::Bound>,
    /// Incremented when the guest may have lost its records of this client's calls.
    epoch: u64,
    notices: BTreeSet<Notice>,
    /// Why the last dial failed.
    last_error: Option<String>,
    gone: Option<String>,
}

struct DialState {
    delays: ExponentialBackoff,
    not_before: Instant,
    /// Start of the current series of refused dials.
    refused_since: Option<Instant>,
    /// Number and error of the last dial that failed permanently.
    refused: Option<(u64, Error)>,
}

impl DialState {
    fn new() -> Self {
        Self {
            delays: retry_budget::backoff(),
            not_before: Instant::now(),
            refused_since: None,
            refused: None,
        }
    }

    /// Returns whether a refusal may still be temporary. Starts the grace period with the first refusal.
    fn may_pass(&mut self) -> bool {
        let since = *self.refused_since.get_or_insert_with(Instant::now);
        since.elapsed() < REFUSAL_GRACE
    }
}

impl Connection {
    /// Creates a connection over the streams of `dialer`. The first call opens a stream.
    pub fn new(dialer: impl Dialer, options: Options) -> Self {
        Self(Arc::new(Inner {
            dialer: Box::new(dialer),
            options,
            operations: Operations::new(),
            state: Mutex::default(),
            dial_lock: tokio::sync::Mutex::new(DialState::new()),
            dials: AtomicU64::new(0),
            gone: CancellationToken::new(),
            stream_limits: STREAM_LIMITS.get(),
        }))
    }

    /// Returns the guest's answer to Hello. Opens a stream if none is open.
    pub async fn greeting(&self) -> Result<Greeting, Error> {
        let slot = Attempts::ask(self, "the greeting").next().await?;
        Ok(Greeting::clone(&slot.greeting))
    }

    /// Returns and clears the notices since the last call of this function.
    #[must_use]
    pub fn take_notices(&self) -> Vec<Notice> {
        std::mem::take(&mut self.state().notices).into_iter().collect()
    }

    pub(crate) fn options(&self) -> &Options {
        &self.0.options
    }

    pub(crate) fn session(&self) -> &str {
        self.0.operations.session()
    }

    /// Assigns an operation number to a call that changes something.
    pub(crate) fn begin_operation(&self) -> PendingOperation {
        self.0.operations.begin()
    }

    /// Resolves when the dialer has reported that the sandbox is gone.
    pub(crate) async fn gone(&self) -> Error {
        self.0.gone.cancelled().await;
        let reason = self.state().gone.clone().unwrap_or_default();
        Error::Gone { reason }
    }

    /// Sends an idempotent call until it is answered.
    pub(crate) async fn ask<M, T, F>(
        &self,
        mut attempts: Attempts,
        request: M,
        send: impl Fn(Channel, M) -> F,
    ) -> Result<T, Error>
    where
        M: Message + Clone,
        F: Future<Output = Result<Response<T>, Status>>,
    {
        check_size(&request)?;
        loop {
            let slot = attempts.next().await?;
            // Boxed, because the future is large and is moved several times.
            let answer = Box::pin(send(slot.channel.clone(), request.clone()));
            if let Some(response) = attempts.answer(answer).await? {
                return Ok(response.into_inner());
            }
        }
    }

    /// Sends a call that changes something until it is answered. The guest executes it once.
    pub(crate) async fn change<M, T, F>(
        &self,
        mut attempts: Attempts,
        operation: &PendingOperation,
        request: impl Fn(Operation) -> M,
        send: impl Fn(Channel, M) -> F,
    ) -> Result<(T, CallSlot), Error>
    where
        M: Message,
        F: Future<Output = Result<Response<T>, Status>>,
    {
        check_size(&request(Operation::default()))?;
        loop {
            let slot = attempts.next().await?;
            let request = request(operation.to_message(attempts.is_repeated()));
            let answer = Box::pin(send(slot.channel.clone(), request));
            if let Some(response) = attempts.answer(answer).await? {
                return Ok((response.into_inner(), slot));
            }
        }
    }

    /// Acquires a slot for one call, on a stream that is opened within `limit` if none is open.
    async fn acquire_slot(&self, kind: StreamKind, limit: Duration) -> Result<CallSlot, OpenError> {
        if let Some(slot) = self.open_slot(kind)? {
            return Ok(slot);
        }
        let redial = tokio::time::timeout(limit, self.redial(kind)).await;
        redial.unwrap_or_else(|_| {
            let last_error = self.state().last_error.clone();
            Err(OpenError::Transient(
                last_error.unwrap_or_else(|| "opening a stream takes too long".to_owned()),
            ))
        })
    }

    /// Acquires a slot on an open stream; `None` if no stream is open.
    fn open_slot(&self, kind: StreamKind) -> Result<Option<CallSlot>, OpenError> {
        let mut state = self.state();
        if let Some(reason) = state.gone.clone() {
            return Err(OpenError::Permanent(Error::Gone { reason }));
        }
        let epoch = state.epoch;
        let stream = state.stream(kind).as_ref().filter(|stream| !stream.channel.is_closed());
        Ok(stream.map(|stream| CallSlot {
            channel: stream.channel.clone(),
            greeting: stream.greeting.clone(),
            epoch,
            _active_call: stream.begin_call(),
            _observed: Observed::begin(self.0.options.observer.clone()),
        }))
    }

    /// Dials until a stream is open or a dial fails permanently.
    async fn redial(&self, kind: StreamKind) -> Result<CallSlot, OpenError> {
        let begun_before = self.0.dials.load(Ordering::SeqCst);
        let mut redial = self.0.dial_lock.lock().await;
        loop {
            if let Some(slot) = self.open_slot(kind)? {
                return Ok(slot);
            }
            if let Some((dial, error)) = &redial.refused
                && *dial >= begun_before
            {
                return Err(OpenError::Permanent(error.clone()));
            }
            // `sleep_until` a past instant still sleeps until the next millisecond.
            if redial.not_before > Instant::now() {
                tokio::time::sleep_until(redial.not_before).await;
            }
            let dial = self.0.dials.fetch_add(1, Ordering::SeqCst);
            match self.open(kind).await.map_err(|closed| self.doubt(closed, &mut redial)) {
                Ok(stream) => {
                    (redial.delays, redial.refused_since) = (retry_budget::backoff(), None);
                    self.install(kind, stream);
                }
                Err(OpenError::Transient(reason)) => {
                    self.state().last_error = Some(reason);
                    let delay = redial.delays.next().unwrap_or_default();
                    redial.not_before = Instant::now() + delay;
                }
                Err(OpenError::Permanent(error)) => {
                    self.note_gone(&error);
                    redial.refused = Some((dial, error));
                }
            }
        }
    }

    /// Turns a refusal into a transient error while the grace period for refusals lasts.
    fn doubt(&self, closed: OpenError, redial: &mut DialState) -> OpenError {
        match closed {
            OpenError::Permanent(Error::Denied(reason))
                if self.state().boot_id.is_some() && redial.may_pass() =>
            {
                OpenError::Transient(reason)
            }
            closed @ OpenError::Permanent(_) => closed,
            closed @ OpenError::Transient(_) => {
                redial.refused_since = None;
                closed
            }
        }
    }

    async fn open(&self, kind: StreamKind) -> Result<Stream, OpenError> {
        let inner = Arc::downgrade(&self.0);
        let weak = inner.clone();
        let _turn = self.0.stream_limits.handshake().await;
        let stream_slot = self.0.stream_limits.acquire(move || Inner::close_for_another(&weak, kind)).await;
        let close_if_idle = move || Inner::close_if_idle(&inner, kind);
        let idle_limit = self.0.options.idle_timeout;
        let window = match kind {
            StreamKind::Main => limits::ANSWER_WINDOW,
            StreamKind::Bulk => limits::STREAM_WINDOW,
        };
        let stream =
            Stream::open(&*self.0.dialer, self.session(), window, idle_limit, close_if_idle, stream_slot)
                .await?;
        // Boxed, because the future is large and seldom needed.
        Box::pin(self.bind_again(&stream)).await?;
        Ok(stream)
    }

    fn install(&self, kind: StreamKind, stream: Stream) {
        let mut state = self.state();
        let boot_id = &stream.greeting.boot_id;
        if let Some(known) = &state.boot_id {
            // The first stream of the other kind replaces none.
            if kind == StreamKind::Main {
                STREAMS.reopened();
            }
            let has_restarted = known != boot_id;
            if has_restarted || !stream.greeting.session_known {
                state.epoch += 1;
            }
            if has_restarted {
                state.notices.insert(Notice::GuestRestarted);
            }
        }
        state.boot_id = Some(boot_id.clone());
        state.last_error = None;
        *state.stream(kind) = Some(stream);
    }

    fn note_gone(&self, error: &Error) {
        if let Error::Gone { reason } = error {
            let mut state = self.state();
            state.gone = Some(reason.clone());
            (state.main, state.bulk) = (None, None);
            drop(state);
            self.0.gone.cancel();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state()
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("session", &self.session()).finish_non_exhaustive()
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the stream if it has no calls. New calls take the same lock, so none can begin meanwhile.
    fn close_if_idle(inner: &Weak<Self>, kind: StreamKind) -> bool {
        let Some(inner) = inner.upgrade() else { return true };
        let mut state = inner.state();
        let stream = state.stream(kind);
        let is_idle = stream.as_ref().is_none_or(Stream::is_idle);
        if is_idle {
            *stream = None;
        }
        is_idle
    }

    /// Closes the stream if it has no calls, to make room for another one. Returns whether it was closed.
    fn close_for_another(inner: &Weak<Self>, kind: StreamKind) -> bool {
        let is_open = inner.upgrade().is_some_and(|inner| inner.state().stream(kind).is_some());
        is_open && Self::close_if_idle(inner, kind)
    }
}

impl State {
    fn stream(&mut self, kind: StreamKind) -> &mut Option<Stream> {
        match kind {
            StreamKind::Main => &mut self.main,
            StreamKind::Bulk => &mut self.bulk,
        }
    }
}

/// Rejects a request that is larger than the guest accepts.
fn check_size(request: &impl Message) -> Result<(), Error> {
    let (size, most) = (request.encoded_len(), limits::MAX_MESSAGE_BYTES);
    if size > most {
        return Err(Error::InvalidArgument(format!(
            "the call has {size} bytes, and the limit is {most}: put large contents into files and upload them"
        )));
    }
    Ok(())
}
