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
mod crowd;
mod deadline;
mod ledger;
mod patience;
mod stream;
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

pub(crate) use attempts::{Attempts, Lease, STALL_LIMIT};
pub(crate) use channel::Channel;
pub(crate) use deadline::Deadline;
pub(crate) use ledger::Ticket;
pub(crate) use stream::MAX_NAME_BYTES;

use crate::dial::Dialer;
use crate::error::{Error, Notice};
use crate::metrics::STREAMS;
use crowd::{CROWD, Crowd};
use ledger::Ledger;
pub use stream::Greeting;
use stream::{Closed, Stream};

/// How long a way that worked before must be refused until that is believed: an API server that has just started
/// forbids everything until it has read its rules.
const REFUSAL_DOUBT: Duration = Duration::from_secs(10);

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
    ledger: Arc<Ledger>,
    state: Mutex<State>,
    /// Held by the one who dials.
    gate: tokio::sync::Mutex<Redial>,
    /// Counts dials that were begun.
    dials: AtomicU64,
    gone: CancellationToken,
    crowd: Arc<Crowd>,
}

/// Which of the two streams.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Lane {
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
    trouble: Option<String>,
    gone: Option<String>,
}

struct Redial {
    delays: ExponentialBackoff,
    not_before: Instant,
    /// Since when dials are refused, without another outcome between them.
    refused_since: Option<Instant>,
    /// The last dial that failed for good, and why.
    refused: Option<(u64, Error)>,
}

impl Redial {
    fn new() -> Self {
        Self { delays: patience::backoff(), not_before: Instant::now(), refused_since: None, refused: None }
    }

    /// Whether a refusal that came now may pass.
    fn doubts(&mut self) -> bool {
        let since = *self.refused_since.get_or_insert_with(Instant::now);
        since.elapsed() < REFUSAL_DOUBT
    }
}

impl Connection {
    /// A connection through what `dialer` opens. It opens nothing until the first call.
    pub fn new(dialer: impl Dialer, options: Options) -> Self {
        Self(Arc::new(Inner {
            dialer: Box::new(dialer),
            options,
            ledger: Ledger::new(),
            state: Mutex::default(),
            gate: tokio::sync::Mutex::new(Redial::new()),
            dials: AtomicU64::new(0),
            gone: CancellationToken::new(),
            crowd: CROWD.get(),
        }))
    }

    /// What the guest says of itself; opens a stream if there is none.
    pub async fn greeting(&self) -> Result<Greeting, Error> {
        let lease = Attempts::ask(self, "a greeting").next().await?;
        Ok(Greeting::clone(&lease.greeting))
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
        self.0.ledger.session()
    }

    /// A number for a call that changes something.
    pub(crate) fn ticket(&self) -> Ticket {
        self.0.ledger.open()
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
            let lease = attempts.next().await?;
            // Large, and held more than once on its way otherwise.
            let answer = Box::pin(send(lease.channel.clone(), request.clone()));
            if let Some(response) = attempts.answer(answer).await? {
                return Ok(response.into_inner());
            }
        }
    }

    /// Sends a call that changes something, until it is answered: it is done once.
    pub(crate) async fn change<M, T, F>(
        &self,
        mut attempts: Attempts,
        ticket: &Ticket,
        request: impl Fn(Operation) -> M,
        send: impl Fn(Channel, M) -> F,
    ) -> Result<(T, Lease), Error>
    where
        M: Message,
        F: Future<Output = Result<Response<T>, Status>>,
    {
        check_size(&request(Operation::default()))?;
        loop {
            let lease = attempts.next().await?;
            let request = request(ticket.operation(attempts.is_repeated()));
            let answer = Box::pin(send(lease.channel.clone(), request));
            if let Some(response) = attempts.answer(answer).await? {
                return Ok((response.into_inner(), lease));
            }
        }
    }

    /// A place on an open stream, within `limit`.
    async fn lease(&self, lane: Lane, limit: Duration) -> Result<Lease, Closed> {
        if let Some(lease) = self.open_lease(lane)? {
            return Ok(lease);
        }
        let redial = tokio::time::timeout(limit, self.redial(lane)).await;
        redial.unwrap_or_else(|_| {
            let trouble = self.state().trouble.clone();
            Err(Closed::Later(trouble.unwrap_or_else(|| "opening a stream takes too long".to_owned())))
        })
    }

    /// A place on the stream that is open already.
    fn open_lease(&self, lane: Lane) -> Result<Option<Lease>, Closed> {
        let mut state = self.state();
        if let Some(reason) = state.gone.clone() {
            return Err(Closed::Never(Error::Gone { reason }));
        }
        let epoch = state.epoch;
        let stream = state.stream(lane).as_ref().filter(|stream| !stream.channel.is_closed());
        Ok(stream.map(|stream| Lease {
            channel: stream.channel.clone(),
            greeting: stream.greeting.clone(),
            epoch,
            _in_use: stream.enter(),
            _observed: Observed::begin(self.0.options.observer.clone()),
        }))
    }

    /// Dials until there is a stream, or until there is no use in it.
    async fn redial(&self, lane: Lane) -> Result<Lease, Closed> {
        let begun_before = self.0.dials.load(Ordering::SeqCst);
        let mut redial = self.0.gate.lock().await;
        loop {
            if let Some(lease) = self.open_lease(lane)? {
                return Ok(lease);
            }
            if let Some((dial, error)) = &redial.refused
                && *dial >= begun_before
            {
                return Err(Closed::Never(error.clone()));
            }
            // A timer for a time that has come still waits for the next millisecond.
            if redial.not_before > Instant::now() {
                tokio::time::sleep_until(redial.not_before).await;
            }
            let dial = self.0.dials.fetch_add(1, Ordering::SeqCst);
            match self.open(lane).await.map_err(|closed| self.doubt(closed, &mut redial)) {
                Ok(stream) => {
                    (redial.delays, redial.refused_since) = (patience::backoff(), None);
                    self.install(lane, stream);
                }
                Err(Closed::Later(reason)) => {
                    self.state().trouble = Some(reason);
                    let delay = redial.delays.next().unwrap_or_default();
                    redial.not_before = Instant::now() + delay;
                }
                Err(Closed::Never(error)) => {
                    self.note_gone(&error);
                    redial.refused = Some((dial, error));
                }
            }
        }
    }

    /// A refusal of what worked before may pass.
    fn doubt(&self, closed: Closed, redial: &mut Redial) -> Closed {
        match closed {
            Closed::Never(Error::Denied(reason)) if self.state().boot_id.is_some() && redial.doubts() => {
                Closed::Later(reason)
            }
            closed @ Closed::Never(_) => closed,
            closed @ Closed::Later(_) => {
                redial.refused_since = None;
                closed
            }
        }
    }

    async fn open(&self, lane: Lane) -> Result<Stream, Closed> {
        let inner = Arc::downgrade(&self.0);
        let crowded = inner.clone();
        let _turn = self.0.crowd.handshake().await;
        let seat = self.0.crowd.enter(move || Inner::make_room(&crowded, lane)).await;
        let close_if_idle = move || Inner::close_if_idle(&inner, lane);
        let idle_limit = self.0.options.idle_timeout;
        let window = match lane {
            Lane::Main => limits::ANSWER_WINDOW,
            Lane::Bulk => limits::STREAM_WINDOW,
        };
        let stream =
            Stream::open(&*self.0.dialer, self.session(), window, idle_limit, close_if_idle, seat).await?;
        // Large, and seldom needed.
        Box::pin(self.bind_again(&stream)).await?;
        Ok(stream)
    }

    fn install(&self, lane: Lane, stream: Stream) {
        let mut state = self.state();
        let boot_id = &stream.greeting.boot_id;
        if let Some(known) = &state.boot_id {
            // The first stream of the other lane takes nobody's place.
            if lane == Lane::Main {
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
        state.trouble = None;
        *state.stream(lane) = Some(stream);
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
    fn close_if_idle(inner: &Weak<Self>, lane: Lane) -> bool {
        let Some(inner) = inner.upgrade() else { return true };
        let mut state = inner.state();
        let stream = state.stream(lane);
        let is_idle = stream.as_ref().is_none_or(Stream::is_idle);
        if is_idle {
            *stream = None;
        }
        is_idle
    }

    /// Forgets a stream without calls for the sake of another one; whether it did.
    fn make_room(inner: &Weak<Self>, lane: Lane) -> bool {
        let is_open = inner.upgrade().is_some_and(|inner| inner.state().stream(lane).is_some());
        is_open && Self::close_if_idle(inner, lane)
    }
}

impl State {
    fn stream(&mut self, lane: Lane) -> &mut Option<Stream> {
        match lane {
            Lane::Main => &mut self.main,
            Lane::Bulk => &mut self.bulk,
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
