//! What opens a guest over the network.
//!
//! A template's guests start with the hash of one secret. Whoever claims one replaces it at Bind by a token of that claim
//! alone: it is derived from the secret and the claim's UID, so every process that has the secret finds it again, and no
//! sandbox's token says anything of another's.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use data_encoding::BASE32_NOPAD;
use sandpod_client::Token;
use sha2::{Digest, Sha256};

use super::AgentSandbox;
use super::claims::Claim;
use crate::{Error, ErrorKind, Result};

/// The length of what SHA-256 takes at once.
const BLOCK: usize = 64;

/// The two tokens of a claim, and which one most likely opens its guest now.
pub(super) struct Tokens {
    secret: Token,
    of_claim: Token,
    /// The guest is bound, as far as we know: then the secret opens it no more.
    bound: AtomicBool,
}

impl Tokens {
    /// The tokens for the next stream. One that is opened for Bind needs the secret, and all later ones the claim's own; the
    /// other one is for who was overtaken by another's Bind, or lost the stream before its own.
    pub(super) fn next(&self) -> Vec<Token> {
        let (secret, of_claim) = (self.secret.clone(), self.of_claim.clone());
        if self.bound.swap(true, Ordering::Relaxed) { vec![of_claim, secret] } else { vec![secret, of_claim] }
    }
}

impl AgentSandbox {
    /// The token that is the claim's own; none without a secret.
    pub(super) fn claim_token(&self, claim: &Claim) -> Result<Option<Token>> {
        Ok(self.secret()?.map(|secret| derive(&secret, claim)))
    }

    pub(super) fn tokens(&self, claim: &Claim) -> Result<Option<Tokens>> {
        let tokens = |secret: Vec<u8>| Tokens {
            of_claim: derive(&secret, claim),
            secret: Token::new(secret),
            bound: AtomicBool::new(claim.is_bound()),
        };
        Ok(self.secret()?.map(tokens))
    }

    fn secret(&self) -> Result<Option<Vec<u8>>> {
        self.0.config.guest_token_file.as_deref().map(read).transpose()
    }
}

/// A file's text, without the newline that editors put at its end.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    let text = std::fs::read(path).map_err(|cause| unreadable(path, &cause.to_string()))?;
    match text.trim_ascii() {
        [] => Err(unreadable(path, "there is nothing in it")),
        text => Ok(text.to_vec()),
    }
}

fn unreadable(path: &Path, why: &str) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        format!("The token in {} can't be used: {why}.", path.display()),
        "Name a file that holds it and nothing else.",
    )
}

fn derive(secret: &[u8], claim: &Claim) -> Token {
    let message = format!("sandpod claim token 1\0{}\0{}", claim.uid, claim.generation);
    Token::new(BASE32_NOPAD.encode(&hmac(secret, message.as_bytes())))
}

/// HMAC-SHA256 (RFC 2104).
fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut block = [0; BLOCK];
    if key.len() > BLOCK {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = Sha256::new().chain_update(block.map(|byte| byte ^ 0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(block.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize().into()
}

#[cfg(test)]
mod tests {
    use data_encoding::HEXLOWER;

    use super::*;

    #[test]
    fn it_is_hmac_as_the_rfc_has_it() {
        // RFC 4231, test cases 2 and 6.
        assert_eq!(
            HEXLOWER.encode(&hmac(b"Jefe", b"what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            HEXLOWER.encode(&hmac(&[0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }

    #[test]
    fn a_token_file_holds_one_token_and_a_newline_is_no_part_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "secret\n").unwrap();
        assert_eq!(read(&path).unwrap(), b"secret");
        std::fs::write(&path, "\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("nothing in it"));
    }
}
