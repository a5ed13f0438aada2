//! Who may use a stream that came over the network: who has the token.
//!
//! The guest holds only the token's hash: from its start, or from the Bind that replaced it. The token
//! itself comes in Hello, inside the stream. Until then every other call is refused, and a stream that
//! does not get there soon is closed.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fs, io};

use sandpod_protocol::Failure;
use sandpod_protocol::v1::ErrorCode;
use sha2::{Digest as _, Sha256};
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
            is_open: watch::Sender::new(false),
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

/// The gate of one stream.
pub(crate) struct Gate {
    admission: Arc<Admission>,
    is_open: watch::Sender<bool>,
    stranger: Mutex<Option<OwnedSemaphorePermit>>,
    _stream: OwnedSemaphorePermit,
}

impl Gate {
    pub(crate) fn is_open(&self) -> bool {
        *self.is_open.borrow()
    }

    /// Opens for the right token.
    pub(crate) async fn admit(&self, token: &[u8]) -> Result<(), Failure> {
        self.admission.check(token).await?;
        self.is_open.send_replace(true);
        drop(self.stranger.lock().unwrap_or_else(PoisonError::into_inner).take());
        Ok(())
    }

    /// Resolves if the gate is not opened in time.
    pub(crate) async fn stays_closed(&self) {
        let mut is_open = self.is_open.subscribe();
        if tokio::time::timeout(HELLO_LIMIT, is_open.wait_for(|is_open| *is_open)).await.is_ok() {
            std::future::pending::<()>().await;
        }
    }
}

/// Says why a call before a good Hello is not answered.
pub(crate) fn refusal() -> Failure {
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
