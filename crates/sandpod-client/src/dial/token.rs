//! The secret that authenticates a client to a guest on the network.

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

/// A token. It is sent inside the stream, and `Debug` does not print it.
///
/// ```
/// use sandpod_client::Token;
///
/// let token = Token::new("long and random");
/// assert_eq!(format!("{token:?}"), "Token(..)");
// The guest's command line and Bind take the hash:
/// assert_eq!(token.sha256()[..3], [0xbe, 0x04, 0xda]);
/// ```
#[derive(Clone)]
pub struct Token(Bytes);

impl Token {
    /// Creates a token of these bytes.
    pub fn new(secret: impl Into<Bytes>) -> Self {
        Self(secret.into())
    }

    /// Returns its SHA-256 hash. A guest stores only the hash.
    #[must_use]
    pub fn sha256(&self) -> [u8; 32] {
        Sha256::digest(&self.0).into()
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        self.0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}
