//! Who may use a stream that came over the network: who has the token.
//!
//! The guest holds only the token's hash: from its start, or from the Bind that replaced it. The token
//! itself comes in Hello, inside the stream. Until then every other call is refused, and a stream that
//! does not get there soon, or sends more than a Hello takes ([`Metered`]), is closed.

use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{fs, io};

use sandpod_protocol::Failure;
use sandpod_protocol::v1::ErrorCode;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::session::binding::Binding;

/// The streams that may be there without a token yet: they cost memory.
const MAX_STRANGERS: usize = 16;
/// All streams.
const MAX_STREAMS: usize = 64;
/// How long a stream may be there without a token.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// How long the answer to a wrong token takes; only one such answer is on its way at a time.
const PENALTY: Duration = Duration::from_secs(1);
/// What a Hello of a stranger may have.
pub(crate) const MAX_HELLO_BYTES: usize = 16 << 10;
/// The Hellos of one stream that wait for their answers at once: each holds what has arrived of it.
const MAX_PENDING_HELLOS: usize = 2;
/// All calls of a stream without a token: a Hello for each token that it may have, and a few that are refused.
const MAX_STRANGER_CALLS: usize = 16;
/// What a stream without a token may send, with all that HTTP/2 and a WebSocket add.
const MAX_STRANGER_BYTES: usize = 64 << 10;

/// SHA-256 of a token.
pub(crate) type TokenHash = [u8; 32];

/// Lets streams in.
pub(crate) struct Admission {
    started_with: Option<TokenHash>,
    binding: Arc<Binding>,
    strangers: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    /// Held while somebody waits for the answer to a wrong token.
    penalty: tokio::sync::Mutex<()>,
}

impl Admission {
    pub(crate) fn new(started_with: Option<TokenHash>, binding: Arc<Binding>) -> Arc<Self> {
        Arc::new(Self {
            started_with,
            binding,
            strangers: Arc::new(Semaphore::new(MAX_STRANGERS)),
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
            penalty: tokio::sync::Mutex::new(()),
        })
    }

    /// A gate for a new stream; none if there are too many.
    pub(crate) fn gate(self: &Arc<Self>) -> Option<Arc<Gate>> {
        let stream = self.streams.clone().try_acquire_owned().ok()?;
        let stranger = self.strangers.clone().try_acquire_owned().ok()?;
        Some(Arc::new(Gate {
            admission: self.clone(),
            state: watch::Sender::new(State::Closed),
            calls: AtomicUsize::new(0),
            hellos: Arc::new(Semaphore::new(MAX_PENDING_HELLOS)),
            stranger: Mutex::new(Some(stranger)),
            _stream: stream,
        }))
    }

    async fn check(&self, token: &[u8]) -> Result<(), Failure> {
        let expected = self.binding.tokens_sha256(self.started_with);
        if expected.is_empty() {
            let message = "this guest has no token, so it takes no calls over the network: start it with \
                           SANDPOD_TOKEN_SHA256, or set one by Bind";
            return Err(Failure::new(ErrorCode::Unauthenticated, message));
        }
        let given = Sha256::digest(token).into();
        // Each is compared: how long that takes does not tell which one it was.
        if expected.iter().fold(false, |found, expected| found | is_same(&given, expected)) {
            return Ok(());
        }
        let _one_at_a_time = self.penalty.lock().await;
        tokio::time::sleep(PENALTY).await;
        let message = match token {
            [] => "a stream over the network opens with a token in its Hello, and this one had none",
            _ => "the token is wrong: use the one that this sandbox was made with",
        };
        Err(Failure::new(ErrorCode::Unauthenticated, message))
    }
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Closed,
    Open,
    /// The stream asked for more than a stranger may.
    GivenUp,
}

/// The gate of one stream.
pub(crate) struct Gate {
    admission: Arc<Admission>,
    state: watch::Sender<State>,
    /// The calls so far that came while it was closed.
    calls: AtomicUsize,
    hellos: Arc<Semaphore>,
    stranger: Mutex<Option<OwnedSemaphorePermit>>,
    _stream: OwnedSemaphorePermit,
}

impl Gate {
    pub(crate) fn is_open(&self) -> bool {
        *self.state.borrow() == State::Open
    }

    /// Counts a call of a stranger. A Hello is taken while what this answers is held; any other call is refused.
    pub(crate) fn take_call(&self, is_hello: bool) -> Result<OwnedSemaphorePermit, Failure> {
        if self.calls.fetch_add(1, Ordering::Relaxed) >= MAX_STRANGER_CALLS {
            self.state.send_if_modified(|state| {
                let gives_up = *state == State::Closed;
                if gives_up {
                    *state = State::GivenUp;
                }
                gives_up
            });
        }
        if !is_hello {
            return Err(refusal());
        }
        self.hellos.clone().try_acquire_owned().map_err(|_| {
            let message = format!(
                "a stream over the network has at most {MAX_PENDING_HELLOS} Hellos under way: wait for an answer"
            );
            Failure::new(ErrorCode::Limit, message)
        })
    }

    /// Opens for the right token.
    pub(crate) async fn admit(&self, token: &[u8]) -> Result<(), Failure> {
        self.admission.check(token).await?;
        self.state.send_replace(State::Open);
        drop(self.stranger.lock().unwrap_or_else(PoisonError::into_inner).take());
        Ok(())
    }

    /// Resolves if the gate is not opened in time, or was given up.
    pub(crate) async fn stays_closed(&self) {
        let mut state = self.state.subscribe();
        let _ = tokio::time::timeout(HELLO_LIMIT, state.wait_for(|state| *state != State::Closed)).await;
        if self.is_open() {
            std::future::pending::<()>().await;
        }
    }
}

/// A stream that ends with an error if its other end sends more than a stranger may while its gate is closed. What has
/// arrived is all that it can make the guest keep.
pub(crate) struct Metered<S> {
    stream: S,
    /// None once it is open.
    gate: Option<Arc<Gate>>,
    left: usize,
}

impl<S> Metered<S> {
    pub(crate) fn new(stream: S, gate: Arc<Gate>) -> Self {
        Self { stream, gate: Some(gate), left: MAX_STRANGER_BYTES }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.gate.as_ref().is_none_or(|gate| gate.is_open()) {
            self.gate = None;
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        if self.left == 0 {
            let message = format!("more than {MAX_STRANGER_BYTES} bytes came before the token");
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::PermissionDenied, message)));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.left = self.left.saturating_sub(buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Says why a call before a good Hello is not answered.
fn refusal() -> Failure {
    let message = "this stream came over the network: say Hello with the token before any other call";
    Failure::new(ErrorCode::Unauthenticated, message)
}

/// Compares in the same time wherever the difference is.
fn is_same(one: &TokenHash, other: &TokenHash) -> bool {
    let difference = one.iter().zip(other).fold(0, |difference, (one, other)| difference | (one ^ other));
    std::hint::black_box(difference) == 0
}

/// Reads a hash as people write it: 64 hexadecimal digits, in a variable or a file.
pub(crate) fn read_hash(text: Option<String>, file: Option<&Path>) -> io::Result<Option<TokenHash>> {
    let text = match (text, file) {
        (Some(text), _) => text,
        (None, Some(file)) => fs::read_to_string(file).map_err(|error| {
            let message = format!("the token's hash cannot be read from {}: {error}", file.display());
            io::Error::new(error.kind(), message)
        })?,
        (None, None) => return Ok(None),
    };
    match parse_hash(text.trim()) {
        Some(hash) => Ok(Some(hash)),
        None => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the token's hash is not 64 hexadecimal digits: give the output of `sha256sum` without the name",
        )),
    }
}

fn parse_hash(text: &str) -> Option<TokenHash> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    let bytes: Vec<u8> =
        digits?.chunks(2).map(|pair| pair.iter().fold(0, |sum, digit| sum << 4 | digit)).collect();
    if text.len() == 64 { bytes.try_into().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_read_from_a_variable_or_a_file() {
        let hash = parse_hash(&"0aF9".repeat(16)).unwrap();
        assert_eq!(hash[..3], [0x0a, 0xf9, 0x0a]);
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, "0aF9".repeat(16) + "\n").unwrap();
        assert_eq!(read_hash(None, Some(file.path())).unwrap(), Some(hash));
        assert_eq!(read_hash(None, None).unwrap(), None);
    }

    #[test]
    fn what_is_no_hash_is_refused_with_a_sentence() {
        for text in ["", "0af9", &"é".repeat(32), &"0".repeat(65), &"x".repeat(64)] {
            let error = read_hash(Some(text.to_owned()), None).unwrap_err();
            assert!(error.to_string().contains("64 hexadecimal digits"), "{text}: {error}");
        }
    }

    #[test]
    fn hashes_are_the_same_only_if_every_byte_is() {
        let hash = [7; 32];
        assert!(is_same(&hash, &hash));
        for index in 0..32 {
            let mut other = hash;
            other[index] ^= 1;
            assert!(!is_same(&hash, &other));
        }
    }
}
