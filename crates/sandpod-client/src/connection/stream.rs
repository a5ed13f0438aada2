//! One stream to the guest: opening, counting its calls, closing.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use sandpod_protocol::v1::{ErrorCode, HelloRequest, HelloResponse};
use sandpod_protocol::{CoalescingStream, Failure, PREAMBLE, VERSIONS, limits};
use tokio::io::AsyncReadExt as _;
use tokio::sync::watch;
use tokio::time::timeout;

use super::channel::{Channel, Lost};
use super::stream_limits::StreamSlot;
use crate::connection_driver::ConnectionDriver;
use crate::dial::{ByteStream, DialError, Dialer, Token};
use crate::error::Error;
use crate::metrics::STREAMS;
use crate::sandbox::Enforced;

/// Time limits of the steps of opening a stream.
const DIAL_LIMIT: Duration = Duration::from_secs(30);
const PREAMBLE_LIMIT: Duration = Duration::from_secs(10);
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// How much unexpected output an error quotes, and how long the client waits for more of it.
const NOISE_BYTES: usize = 256;
const NOISE_LIMIT: Duration = Duration::from_millis(200);
/// Maximum length of a name that a guest assigns.
pub(crate) const MAX_NAME_BYTES: usize = 256;

/// An open stream whose guest has answered Hello.
pub(super) struct Stream {
    pub(super) channel: Channel,
    pub(super) greeting: Arc<Greeting>,
    calls: Arc<watch::Sender<usize>>,
    /// Its slot among all streams of the process, until it ends.
    slot: Weak<StreamSlot>,
}

/// The guest's answer to Hello.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Greeting {
    /// Negotiated protocol version.
    pub version: u32,
    /// Id of the guest's current boot; it changes when the guest restarts.
    pub boot_id: String,
    /// Version of the guest.
    pub guest_version: String,
    /// Capabilities beyond the first protocol version.
    pub capabilities: Vec<String>,
    /// The claim that the sandbox is bound to.
    pub claim: Option<String>,
    /// The restrictions that the guest can enforce on commands.
    pub enforced: Enforced,
    pub(super) session_known: bool,
}

/// Why a stream could not be opened.
pub(super) enum OpenError {
    /// A later dial may succeed.
    Transient(String),
    /// Later dials fail, too.
    Permanent(Error),
}

/// Counts one call on a stream until it is dropped.
pub(crate) struct ActiveCall {
    calls: Arc<watch::Sender<usize>>,
    slot: Weak<StreamSlot>,
}

impl ActiveCall {
    fn of(calls: &Arc<watch::Sender<usize>>, slot: &Weak<StreamSlot>) -> Self {
        calls.send_modify(|count| *count += 1);
        if let Some(slot) = slot.upgrade() {
            slot.used();
        }
        Self { calls: calls.clone(), slot: slot.clone() }
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        self.calls.send_modify(|count| *count -= 1);
        if let (0, Some(slot)) = (*self.calls.borrow(), self.slot.upgrade()) {
            slot.idle();
        }
    }
}

impl Stream {
    /// Counts a call: the stream is not idle until the result is dropped.
    pub(super) fn begin_call(&self) -> ActiveCall {
        ActiveCall::of(&self.calls, &self.slot)
    }

    pub(super) fn is_idle(&self) -> bool {
        *self.calls.borrow() == 0
    }

    /// Dials, reads the preamble and sends Hello. After `idle_limit` without calls, the stream closes if `close_if_idle` returns
    /// true. The stream holds its `slot` until it ends. `window` is the flow-control window of each answer.
    pub(super) async fn open(
        dialer: &dyn Dialer,
        session: &str,
        window: u32,
        idle_limit: Duration,
        close_if_idle: impl Fn() -> bool + Send + 'static,
        slot: Arc<StreamSlot>,
    ) -> Result<Self, OpenError> {
        let mut io =
            within(DIAL_LIMIT, "no stream was opened", dialer.dial()).await?.map_err(OpenError::from)?;
        within(PREAMBLE_LIMIT, "the guest sent nothing", expect_preamble(&mut io)).await??;
        let handshake = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .adaptive_window(false)
            .initial_stream_window_size(window)
            .max_frame_size(limits::FRAME_BYTES)
            .initial_connection_window_size(limits::CONNECTION_WINDOW)
            .keep_alive_interval(limits::KEEP_ALIVE)
            .keep_alive_timeout(limits::KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(CoalescingStream::new(io)));
        let (sender, connection) =
            handshake.await.map_err(|error| OpenError::Transient(error.to_string()))?;
        let calls = Arc::new(watch::channel(0).0);
        let (usage, held_slot) = (calls.subscribe(), slot);
        let slot = Arc::downgrade(&held_slot);
        let open = STREAMS.open();
        let driver = ConnectionDriver::spawn(async move {
            let (_seated, _open) = (held_slot, open);
            tokio::select! {
                _ = connection => {}
                () = idle(usage, idle_limit, close_if_idle) => {}
            }
        });
        let channel = Channel::new(sender, driver);
        let _active_call = ActiveCall::of(&calls, &slot);
        let greeting =
            within(HELLO_LIMIT, "the guest did not answer Hello", hello(&channel, session, dialer.tokens()))
                .await??;
        Ok(Self { channel, greeting: Arc::new(greeting), calls, slot })
    }
}

/// Resolves when the stream had no calls for `limit` and `may_close` returned true.
async fn idle(mut calls: watch::Receiver<usize>, limit: Duration, may_close: impl Fn() -> bool) {
    while calls.wait_for(|count| *count == 0).await.is_ok() {
        let next_call = calls.wait_for(|count| *count > 0);
        if timeout(limit, next_call).await.is_err() && may_close() {
            return;
        }
    }
    // No further call can begin: the connection ends by itself.
    std::future::pending::<()>().await;
}

pub(super) async fn within<T>(
    limit: Duration,
    otherwise: &str,
    step: impl Future<Output = T>,
) -> Result<T, OpenError> {
    timeout(limit, step).await.map_err(|_| OpenError::Transient(format!("{otherwise} within {limit:?}")))
}

/// Reads the preamble and no byte beyond it.
async fn expect_preamble(io: &mut Box<dyn ByteStream>) -> Result<(), OpenError> {
    let mut heard = Vec::with_capacity(NOISE_BYTES);
    while heard.len() < PREAMBLE.len() {
        let missing = (PREAMBLE.len() - heard.len()) as u64;
        let count = (&mut *io).take(missing).read_buf(&mut heard).await;
        let count =
            count.map_err(|error| OpenError::Transient(format!("the stream broke at once: {error}")))?;
        if !PREAMBLE.starts_with(&heard) {
            return Err(noise(io, heard).await);
        }
        if count == 0 {
            return Err(OpenError::Transient("the stream ended before the guest sent anything".to_owned()));
        }
    }
    Ok(())
}

/// Hears a little more, because the beginning of an error message rarely says enough.
async fn noise(io: &mut Box<dyn ByteStream>, mut heard: Vec<u8>) -> OpenError {
    let more = (NOISE_BYTES - heard.len()) as u64;
    let _ = timeout(NOISE_LIMIT, io.take(more).read_to_end(&mut heard)).await;
    let heard = heard.escape_ascii();
    OpenError::Permanent(Error::Protocol(format!(
        "expected the guest's preamble, but the stream begins with \"{heard}\""
    )))
}

/// Sends Hello with each token in turn until one is accepted.
async fn hello(channel: &Channel, session: &str, tokens: Vec<Token>) -> Result<Greeting, OpenError> {
    let mut tokens = tokens.into_iter().map(Token::into_bytes);
    let mut token = tokens.next().unwrap_or_default();
    loop {
        match (say_hello(channel, session, token).await, tokens.next()) {
            (Err(OpenError::Permanent(Error::Failure(failure))), Some(other))
                if failure.code() == ErrorCode::Unauthenticated =>
            {
                token = other;
            }
            (answer, _) => return answer,
        }
    }
}

async fn say_hello(channel: &Channel, session: &str, token: Bytes) -> Result<Greeting, OpenError> {
    let (min_version, max_version) = VERSIONS.into_inner();
    let request = HelloRequest { min_version, max_version, session: session.to_owned(), token };
    match channel.session().hello(request).await {
        Ok(response) => Greeting::check(response.into_inner()).map_err(OpenError::Permanent),
        Err(status) => Err(match Lost::reason(&status) {
            Some(reason) => {
                OpenError::Transient(format!("the stream broke before the guest answered Hello: {reason}"))
            }
            None => OpenError::Permanent(Error::Failure(Failure::from(&status))),
        }),
    }
}

impl Greeting {
    fn check(hello: HelloResponse) -> Result<Self, Error> {
        if !VERSIONS.contains(&hello.version) {
            let (oldest, newest) = VERSIONS.into_inner();
            let version = hello.version;
            return Err(Error::Protocol(format!(
                "the guest's version is {version}, and this client supports {oldest} to {newest}"
            )));
        }
        let names =
            [&hello.boot_id, &hello.guest_version, &hello.claim].into_iter().chain(&hello.capabilities);
        let longest = names.map(String::len).max().unwrap_or_default();
        let is_absurd = longest > MAX_NAME_BYTES || hello.capabilities.len() > MAX_NAME_BYTES;
        if hello.boot_id.is_empty() || is_absurd {
            return Err(Error::Protocol("its answer to Hello is invalid".to_owned()));
        }
        Ok(Self {
            version: hello.version,
            boot_id: hello.boot_id,
            guest_version: hello.guest_version,
            capabilities: hello.capabilities,
            claim: Some(hello.claim).filter(|claim| !claim.is_empty()),
            enforced: hello.enforced.into(),
            session_known: hello.session_known,
        })
    }
}

impl From<DialError> for OpenError {
    fn from(error: DialError) -> Self {
        match error {
            DialError::Unreachable(reason) => Self::Transient(reason),
            DialError::Gone(reason) => Self::Permanent(Error::Gone { reason }),
            DialError::Denied(reason) => Self::Permanent(Error::Denied(reason)),
        }
    }
}
