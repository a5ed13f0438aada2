//! What opens a guest over the network.
//!
//! A template's guests start with the hash of one secret. Whoever claims one replaces it at Bind by a token of that claim
//! alone: it is derived from the secret and the claim's UID, so every process that has the secret finds it again, and no
//! sandbox's token says anything of another's.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use data_encoding::BASE32_NOPAD;
use sandpod_client::Token;
use sha2::{Digest, Sha256};

use super::AgentSandbox;
use super::claims::Claim;
use crate::{Error, ErrorKind, Result};

/// The length of what SHA-256 takes at once.
const BLOCK: usize = 64;

/// What opens the guest of a claim.
pub(super) struct Tokens {
    of_claim: Token,
    /// For streams until we have bound the guest. The secret is never shown to one that is known to be bound.
    before: Mutex<Option<Vec<Token>>>,
}

impl Tokens {
    fn new(secret: Vec<u8>, claim: &Claim) -> Self {
        let (of_claim, secret) = (derive(&secret, claim), Token::new(secret));
        let before = match claim {
            // Nobody has noted whether it is bound.
            claim if claim.adopted => Some(vec![of_claim.clone(), secret]),
            claim if claim.is_bound() => None,
            // Another may be binding it just now.
            _ => Some(vec![secret, of_claim.clone()]),
        };
        Self { of_claim, before: Mutex::new(before) }
    }

    /// The tokens for the next stream, the likeliest first.
    pub(super) fn next(&self) -> Vec<Token> {
        let before = self.before.lock().unwrap_or_else(PoisonError::into_inner).clone();
        before.unwrap_or_else(|| vec![self.of_claim.clone()])
    }

    /// The guest has answered our Bind.
    pub(super) fn note_bound(&self) {
        self.before.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl AgentSandbox {
    /// The token that is the claim's own; none without a secret.
    pub(super) fn claim_token(&self, claim: &Claim) -> Result<Option<Token>> {
        Ok(self.secret()?.map(|secret| derive(&secret, claim)))
    }

    pub(super) fn tokens(&self, claim: &Claim) -> Result<Option<Tokens>> {
        Ok(self.secret()?.map(|secret| Tokens::new(secret, claim)))
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
    use serde_json::{Value, json};

    use super::*;

    fn tokens(labels: &Value, annotations: &Value) -> Tokens {
        let claim = json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
            "metadata": { "name": "a", "uid": "1", "resourceVersion": "2", "labels": labels, "annotations": annotations },
            "spec": { "warmPoolRef": { "name": "pool" } },
        });
        Tokens::new(b"secret".to_vec(), &Claim::read_any(serde_json::from_value(claim).unwrap()).unwrap())
    }

    #[test]
    fn the_secret_is_only_shown_to_a_guest_that_may_be_unbound() {
        let ours = json!({ "app.kubernetes.io/managed-by": "sandpod" });
        let new = json!({ "sandpod.dev/generation": "1" });
        let bound =
            json!({ "sandpod.dev/generation": "1", "sandpod.dev/created-at": "2026-01-01T00:00:00Z" });
        let secret = Token::new("secret").sha256();
        let shown = |tokens: &Tokens| -> Vec<_> {
            tokens
                .next()
                .iter()
                .map(|token| if token.sha256() == secret { "secret" } else { "claim" })
                .collect()
        };
        for (labels, annotations, before) in [
            (&ours, &new, &["secret", "claim"][..]),
            (&ours, &bound, &["claim"]),
            (&json!({}), &bound, &["claim", "secret"]),
        ] {
            let tokens = tokens(labels, annotations);
            assert_eq!(shown(&tokens), before);
            assert_eq!(shown(&tokens), before, "the first stream was lost before Bind");
            tokens.note_bound();
            assert_eq!(shown(&tokens), ["claim"]);
        }
    }

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
