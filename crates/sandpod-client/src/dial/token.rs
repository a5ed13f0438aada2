//! The secret that opens a guest to the network.

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

/// A token. It travels inside the stream, and shows itself to nobody.
///
/// ```
/// use sandpod_client::Token;
///
/// let token = Token::new("long and random");
/// assert_eq!(format!("{token:?}"), "Token(..)");
/// // What a guest is started with, and what Bind is given:
/// assert_eq!(token.sha256()[..3], [0xbe, 0x04, 0xda]);
/// ```
#[derive(Clone)]
pub struct Token(Bytes);

impl Token {
    /// A token of these bytes.
    pub fn new(secret: impl Into<Bytes>) -> Self {
        Self(secret.into())
    }

    /// Its hash, which is all that a guest holds of it.
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
