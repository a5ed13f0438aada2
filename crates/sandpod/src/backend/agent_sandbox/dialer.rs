//! Opens streams to a guest by the connection mode that [`connect`](super::connect) has found.
//!
//! A guest that is reached over the network needs a token. A process without the secret of the template's guests hands over a
//! token of its own ([`TokenHandover`]): Bind goes through an exec stream and gives the guest that token, and all later streams
//! use the connection mode that was found.

use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use sandpod_client::{ByteStream, DialError, Dialer, Token};
use sandpod_dialect::Dialect;
use tokio::io::{copy_bidirectional, duplex};
use tokio::task::AbortHandle;

use super::AgentSandbox;
use super::connect::{ConnectedGuest, ConnectionMode, Endpoint, GuestLocation};
use super::tokens::Tokens;

/// The size of the buffer between the dialer and a handover stream.
const RELAY_BYTES: usize = 64 << 10;

/// Exec streams that are used until Bind has given the guest our token.
#[derive(Default)]
struct TokenHandover(Mutex<State>);

/// The state of a handover.
enum State {
    /// The tasks that relay its streams.
    Open(Vec<AbortHandle>),
    Over,
}

impl Default for State {
    fn default() -> Self {
        Self::Open(Vec::new())
    }
}

impl TokenHandover {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        matches!(*self.state(), State::Over)
    }

    /// Returns the stream, which ends when the handover is over.
    fn relay(&self, mut stream: Box<dyn ByteStream>) -> Box<dyn ByteStream> {
        let (near, mut far) = duplex(RELAY_BYTES);
        let relaying = tokio::spawn(async move {
            // Both sides see the end of the stream.
            let _ = copy_bidirectional(&mut far, &mut stream).await;
        });
        match &mut *self.state() {
            State::Open(relays) => relays.push(relaying.abort_handle()),
            State::Over => relaying.abort(),
        }
        Box::new(near)
    }

    /// Ends its streams. The next ones use the connection mode that was found.
    fn end(&self) {
        if let State::Open(relays) = std::mem::replace(&mut *self.state(), State::Over) {
            relays.iter().for_each(AbortHandle::abort);
        }
    }
}

/// Opens streams to the guest in the Pod with this UID, by the connection mode that was found.
pub(super) struct PlaceDialer {
    backend: AgentSandbox,
    location: GuestLocation,
    mode: ConnectionMode,
    /// The stream by which the guest was found.
    first: Mutex<Option<Box<dyn ByteStream>>>,
    /// The stock runtime that serves in place of a guest.
    runtime: Option<Dialect>,
    tokens: Option<Tokens>,
    handover: Option<TokenHandover>,
}

impl PlaceDialer {
    pub(super) fn new(
        backend: AgentSandbox,
        location: GuestLocation,
        reached: ConnectedGuest,
        tokens: Option<Tokens>,
    ) -> Self {
        let handover = matches!(reached.found, Endpoint::GuestWithoutSecret(_)).then(TokenHandover::default);
        let (first, runtime) = match reached.found {
            Endpoint::Guest(stream) | Endpoint::GuestWithoutSecret(stream) | Endpoint::Pushed(stream, _) => {
                (Some(stream), None)
            }
            Endpoint::Runtime(dialect) => (None, Some(dialect)),
        };
        let tokens = tokens.filter(|_| reached.mode != ConnectionMode::Exec && runtime.is_none());
        Self { backend, location, mode: reached.mode, first: Mutex::new(first), runtime, tokens, handover }
    }

    async fn open(&self) -> Result<Box<dyn ByteStream>, DialError> {
        let handover = self.handover.as_ref().filter(|handover| !handover.is_over());
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let stream = match first {
            Some(first) => first,
            None => self.open_anew(handover.is_some()).await?,
        };
        Ok(match handover {
            Some(handover) => handover.relay(stream),
            None => stream,
        })
    }

    async fn open_anew(&self, is_handover: bool) -> Result<Box<dyn ByteStream>, DialError> {
        self.backend.still_there(&self.location).await?;
        match &self.runtime {
            Some(dialect) => Ok(dialect.stream()),
            None if is_handover => self.backend.open(ConnectionMode::Exec, &self.location).await,
            None => self.backend.open(self.mode, &self.location).await,
        }
    }
}

impl Dialer for PlaceDialer {
    fn dial(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, DialError>> {
        self.open().boxed()
    }

    fn tokens(&self) -> Vec<Token> {
        self.tokens.as_ref().map(Tokens::next).unwrap_or_default()
    }

    fn bound(&self) {
        if let Some(tokens) = &self.tokens {
            tokens.note_bound();
        }
        if let Some(handover) = &self.handover {
            handover.end();
        }
    }
}
