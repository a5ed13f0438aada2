//! Authenticates streams that came over the network.
//!
//! The guest holds only the token's hash: from its start, or from the Bind that replaced it. The token itself comes in
//! Hello, inside the stream. Until then all other calls are refused, and a stream that is not authenticated
//! in time, or sends more than a Hello needs ([`Metered`]), is closed.

use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{fs, io};

use data_encoding::HEXLOWER_PERMISSIVE;
use sandpod_protocol::Failure;
use sandpod_protocol::v1::ErrorCode;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::session::binding::Binding;

/// Streams that may wait for authentication at the same time: each costs memory.
const MAX_UNAUTHENTICATED_STREAMS: usize = 16;
/// All streams over the network.
const MAX_STREAMS: usize = 64;
/// Time for a stream to authenticate.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay of the answer to a wrong token. Only one such answer is delayed at a time, and the others wait for it.
const PENALTY: Duration = Duration::from_secs(1);
/// Maximum size of a Hello before authentication.
pub(crate) const MAX_HELLO_BYTES: usize = 16 << 10;
/// Hellos of one stream that may be in progress: each holds the bytes that have arrived.
const MAX_PENDING_HELLOS: usize = 2;
/// Calls of an unauthenticated stream: a Hello for each token that the client may have, and a few that are refused.
const MAX_UNAUTHENTICATED_CALLS: usize = 16;
/// Bytes that an unauthenticated stream may send, including the overhead of HTTP/2 and a WebSocket.
const MAX_UNAUTHENTICATED_BYTES: usize = 64 << 10;

/// SHA-256 of a token.
pub(crate) type TokenHash = [u8; 32];

/// Checks tokens and limits the streams over the network.
pub(crate) struct Authenticator {
    started_with: Option<TokenHash>,
    binding: Arc<Binding>,
    pending: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    /// Held while the answer to a wrong token is delayed.
    penalty: tokio::sync::Mutex<()>,
}

impl Authenticator {
    pub(crate) fn new(started_with: Option<TokenHash>, binding: Arc<Binding>) -> Arc<Self> {
        Arc::new(Self {
            started_with,
            binding,
            pending: Arc::new(Semaphore::new(MAX_UNAUTHENTICATED_STREAMS)),
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
            penalty: tokio::sync::Mutex::new(()),
        })
    }

    /// Returns the authentication of a new stream, or `None` if there are too many.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<Arc<StreamAuth>> {
        let stream = self.streams.clone().try_acquire_owned().ok()?;
        let permit = self.pending.clone().try_acquire_owned().ok()?;
        Some(Arc::new(StreamAuth {
            authenticator: self.clone(),
            state: watch::Sender::new(State::Pending),
            calls: AtomicUsize::new(0),
            hellos: Arc::new(Semaphore::new(MAX_PENDING_HELLOS)),
            pending_permit: Mutex::new(Some(permit)),
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
        // All are compared, so that the time does not reveal which one matched.
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
    Pending,
    Authenticated,
    /// The stream made more calls than allowed before authentication.
    Failed,
}

/// Authentication of one stream.
pub(crate) struct StreamAuth {
    authenticator: Arc<Authenticator>,
    state: watch::Sender<State>,
    /// Number of calls so far before authentication.
    calls: AtomicUsize,
    hellos: Arc<Semaphore>,
    pending_permit: Mutex<Option<OwnedSemaphorePermit>>,
    _stream: OwnedSemaphorePermit,
}

impl StreamAuth {
    pub(crate) fn is_authenticated(&self) -> bool {
        *self.state.borrow() == State::Authenticated
    }

    /// Counts a call before authentication. A Hello may run while the returned permit is held; other calls are refused.
    pub(crate) fn begin_call(&self, is_hello: bool) -> Result<OwnedSemaphorePermit, Failure> {
        if self.calls.fetch_add(1, Ordering::Relaxed) >= MAX_UNAUTHENTICATED_CALLS {
            self.state.send_if_modified(|state| {
                let fails = *state == State::Pending;
                if fails {
                    *state = State::Failed;
                }
                fails
            });
        }
        if !is_hello {
            return Err(unauthenticated());
        }
        self.hellos.clone().try_acquire_owned().map_err(|_| {
            let message = format!(
                "a stream over the network has at most {MAX_PENDING_HELLOS} Hellos under way: wait for an answer"
            );
            Failure::new(ErrorCode::Limit, message)
        })
    }

    /// Authenticates the stream if the token is right.
    pub(crate) async fn authenticate(&self, token: &[u8]) -> Result<(), Failure> {
        self.authenticator.check(token).await?;
        self.state.send_replace(State::Authenticated);
        drop(self.pending_permit.lock().unwrap_or_else(PoisonError::into_inner).take());
        Ok(())
    }

    /// Resolves if the stream is not authenticated in time, or made too many calls.
    pub(crate) async fn failed(&self) {
        let mut state = self.state.subscribe();
        let _ = tokio::time::timeout(HELLO_TIMEOUT, state.wait_for(|state| *state != State::Pending)).await;
        if self.is_authenticated() {
            std::future::pending::<()>().await;
        }
    }
}

/// A stream that fails if its peer sends too many bytes before authentication. This bounds the memory that the peer can
/// make the guest use.
pub(crate) struct Metered<S> {
    stream: S,
    /// `None` once authenticated.
    auth: Option<Arc<StreamAuth>>,
    left: usize,
}

impl<S> Metered<S> {
    pub(crate) fn new(stream: S, auth: Arc<StreamAuth>) -> Self {
        Self { stream, auth: Some(auth), left: MAX_UNAUTHENTICATED_BYTES }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.auth.as_ref().is_none_or(|auth| auth.is_authenticated()) {
            self.auth = None;
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        if self.left == 0 {
            let message = format!("more than {MAX_UNAUTHENTICATED_BYTES} bytes came before the token");
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

/// The error of a call before authentication.
fn unauthenticated() -> Failure {
    let message = "this stream came over the network: say Hello with the token before any other call";
    Failure::new(ErrorCode::Unauthenticated, message)
}

/// Compares in constant time.
fn is_same(one: &TokenHash, other: &TokenHash) -> bool {
    let difference = one.iter().zip(other).fold(0, |difference, (one, other)| difference | (one ^ other));
    std::hint::black_box(difference) == 0
}

/// Reads a hash of 64 hexadecimal digits from a variable's value or a file.
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
    HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?.try_into().ok()
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
    fn an_invalid_hash_is_refused() {
        for text in ["", "0af9", &"é".repeat(32), &"0".repeat(65), &"x".repeat(64)] {
            let error = read_hash(Some(text.to_owned()), None).unwrap_err();
            assert!(error.to_string().contains("64 hexadecimal digits"), "{text}: {error}");
        }
    }

    #[test]
    fn hashes_are_equal_only_if_all_bytes_are() {
        let hash = [7; 32];
        assert!(is_same(&hash, &hash));
        for index in 0..32 {
            let mut other = hash;
            other[index] ^= 1;
            assert!(!is_same(&hash, &other));
        }
    }
}
