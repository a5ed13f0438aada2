//! All calls of all callers over one stream, and over a second one for bulk transfers.
//!
//! A [`Connection`] opens a stream when a call waits for one, one at a time however many callers
//! there are, and closes it when it was idle for long. Losing a stream cancels nothing: calls are
//! sent again on the next one, those that change something under the same number, so that the guest
//! answers them from its record. If the guest itself was lost, such a call's outcome is unknown,
//! and nobody repeats it.

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

/// How long a way that worked before must be refused until that is believed: an API server that has just started
/// forbids everything until it has read its rules.
const REFUSAL_GRACE: Duration = Duration::from_secs(10);

/// What a connection can be told.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long a call waits for a stream, all its waiting taken together.
    pub reconnect_timeout: Duration,
    /// How long a stream without calls stays open.
    pub idle_timeout: Duration,
    /// Who hears of every call.
    pub observer: Option<Arc<dyn Observer>>,
}

/// Hears of every call on a sandbox, whatever becomes of it.
pub trait Observer: std::fmt::Debug + Send + Sync + 'static {
    /// A call has begun.
    fn begun(&self);
    /// A call has ended.
    fn ended(&self);
}

/// One call that an observer was told of.
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

/// The way to one guest, shared by all its clones.
#[derive(Clone)]
pub struct Connection(Arc<Inner>);

struct Inner {
    dialer: Box<dyn Dialer>,
    options: Options,
    operations: Arc<Operations>,
    state: Mutex<State>,
    /// Held by the one who dials.
    dial_lock: tokio::sync::Mutex<DialState>,
    /// Counts dials that were begun.
    dials: AtomicU64,
    gone: CancellationToken,
    stream_limits: Arc<StreamLimits>,
}

/// Which of the two streams.
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
    /// Changes when the guest may have lost its records of our calls.
    epoch: u64,
    notices: BTreeSet<Notice>,
    /// Why the last dial failed.
    last_error: Option<String>,
    gone: Option<String>,
}

struct DialState {
    delays: ExponentialBackoff,
    not_before: Instant,
    /// Since when dials are refused, without another outcome between them.
    refused_since: Option<Instant>,
    /// The last dial that failed for good, and why.
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

    /// Whether a refusal that came now may pass.
    fn may_pass(&mut self) -> bool {
        let since = *self.refused_since.get_or_insert_with(Instant::now);
        since.elapsed() < REFUSAL_GRACE
    }
}

impl Connection {
    /// A connection through what `dialer` opens. It opens nothing until the first call.
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

    /// What the guest says of itself; opens a stream if there is none.
    pub async fn greeting(&self) -> Result<Greeting, Error> {
        let slot = Attempts::ask(self, "a greeting").next().await?;
        Ok(Greeting::clone(&slot.greeting))
    }

    /// What happened since this was asked last.
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

    /// A number for a call that changes something.
    pub(crate) fn begin_operation(&self) -> PendingOperation {
        self.0.operations.begin()
    }

    /// Resolves when the dialer has said that the guest's place is gone.
    pub(crate) async fn gone(&self) -> Error {
        self.0.gone.cancelled().await;
        let reason = self.state().gone.clone().unwrap_or_default();
        Error::Gone { reason }
    }

    /// Sends a call that can be sent any number of times, until it is answered.
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
            // Large, and held more than once on its way otherwise.
            let answer = Box::pin(send(slot.channel.clone(), request.clone()));
            if let Some(response) = attempts.answer(answer).await? {
                return Ok(response.into_inner());
            }
        }
    }

    /// Sends a call that changes something, until it is answered: it is done once.
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

    /// A place on an open stream, within `limit`.
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

    /// A place on the stream that is open already.
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

    /// Dials until there is a stream, or until there is no use in it.
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
            // A timer for a time that has come still waits for the next millisecond.
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

    /// A refusal of what worked before may pass.
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
        // Large, and seldom needed.
        Box::pin(self.bind_again(&stream)).await?;
        Ok(stream)
    }

    fn install(&self, kind: StreamKind, stream: Stream) {
        let mut state = self.state();
        let boot_id = &stream.greeting.boot_id;
        if let Some(known) = &state.boot_id {
            // The first stream of the other kind takes nobody's place.
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

    /// Forgets a stream without calls. No call can begin meanwhile: that takes the same lock.
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

    /// Forgets a stream without calls for the sake of another one; whether it did.
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

/// Refuses what the guest could not take.
fn check_size(request: &impl Message) -> Result<(), Error> {
    let (size, most) = (request.encoded_len(), limits::MAX_MESSAGE_BYTES);
    if size > most {
        return Err(Error::InvalidArgument(format!(
            "the call has {size} bytes, and {most} is the most: put large contents into files and upload them"
        )));
    }
    Ok(())
}
