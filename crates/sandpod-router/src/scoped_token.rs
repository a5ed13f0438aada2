//! Tokens for one sandbox, in the wire form of the original router: `v1.PAYLOAD.SIGNATURE`.
//!
//! The payload is `{"ns", "name", "exp"}`; the signature is an HMAC-SHA256 over a context string and the encoded payload.
//! A token is verified with any of several keys, so that a key can be rotated while old tokens are still valid.
//!
//! A [`Share`] is the token of a shared preview link: it opens one port of the sandbox with one UID, and is signed in a
//! context of its own, so that neither kind of token passes as the other.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::BASE64URL_NOPAD;
use ring::hmac;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::preview::{Preview, remaining};

const VERSION: &str = "v1.";
const CONTEXT: &str = "agent-sandbox/scoped-token/v1.";
const SHARE_VERSION: &str = "s1.";
const SHARE_CONTEXT: &str = "sandpod/share/v1.";
/// The output size of SHA-256: a shorter key could be guessed from one token.
const MIN_SECRET_BYTES: usize = 32;

/// The keys that sign and verify tokens: the first signs, all verify.
///
/// ```
/// use std::time::Duration;
/// use sandpod_router::scoped_token::Keys;
///
/// let keys = Keys::new(&[b"0123456789abcdef0123456789abcdef"]).unwrap();
/// let token = keys.sign("agents", "box", Duration::from_secs(60));
/// assert_eq!(keys.verify(&token).unwrap().name, "box");
/// ```
#[derive(Clone)]
pub struct Keys(Arc<[hmac::Key]>);

/// The sandbox that a token is for.
#[derive(Clone, Debug, Eq, PartialEq, Deserialize, Serialize)]
pub struct Scope {
    /// Its namespace.
    #[serde(rename = "ns")]
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The second since 1970 from which on the token is invalid.
    #[serde(rename = "exp")]
    pub expires_at: u64,
}

/// The port that a shared link opens.
#[derive(Clone, Debug, Eq, PartialEq, Deserialize, Serialize)]
pub struct Share {
    #[serde(rename = "ns")]
    namespace: String,
    name: String,
    /// The sandbox that had the name when the link was signed.
    uid: String,
    port: u16,
    #[serde(rename = "exp")]
    expires_at: u64,
}

impl Share {
    pub(crate) fn is_for(&self, preview: &Preview) -> bool {
        let sandbox = &preview.sandbox;
        (self.namespace == sandbox.namespace && self.name == sandbox.name) && self.port == preview.port
    }

    pub(crate) fn uid(&self) -> &str {
        &self.uid
    }

    pub(crate) fn remaining(&self) -> Duration {
        remaining(self.expires_at)
    }
}

/// Whether a bearer token has the form of a scoped one.
pub(crate) fn is_scoped(token: &str) -> bool {
    token.starts_with(VERSION) && token.matches('.').count() == 2
}

impl Keys {
    /// Takes the secrets of one or more keys. White space around a secret does not count, as a file ends with a newline.
    pub fn new(secrets: &[&[u8]]) -> Result<Self, String> {
        let key = |secret: &&[u8]| {
            let secret = secret.trim_ascii();
            if secret.len() < MIN_SECRET_BYTES {
                return Err(format!(
                    "A secret for scoped tokens has {} bytes; it needs at least {MIN_SECRET_BYTES}.",
                    secret.len()
                ));
            }
            Ok(hmac::Key::new(hmac::HMAC_SHA256, secret))
        };
        let keys: Vec<_> = secrets.iter().map(key).collect::<Result<_, _>>()?;
        if keys.is_empty() { Err("No secret for scoped tokens.".to_owned()) } else { Ok(Self(keys.into())) }
    }

    /// Signs a token that is valid for `lifetime`, in whole seconds.
    #[must_use]
    pub fn sign(&self, namespace: &str, name: &str, lifetime: Duration) -> String {
        let expires_at = now() + lifetime.as_secs();
        let scope = Scope { namespace: namespace.to_owned(), name: name.to_owned(), expires_at };
        self.sign_as(VERSION, CONTEXT, &scope)
    }

    /// Returns the scope of a token that one of the keys signed and that has not expired.
    #[must_use]
    pub fn verify(&self, token: &str) -> Option<Scope> {
        let scope: Scope = self.verify_as(VERSION, CONTEXT, token)?;
        (now() < scope.expires_at).then_some(scope)
    }

    /// Signs the token of a shared link to the sandbox with `uid`; returns it and the second since 1970 at which it ends.
    pub(crate) fn sign_share(&self, preview: &Preview, uid: &str, lifetime: Duration) -> (String, u64) {
        let expires_at = now() + lifetime.as_secs();
        let (namespace, name) = (preview.sandbox.namespace.clone(), preview.sandbox.name.clone());
        let share = Share { namespace, name, uid: uid.to_owned(), port: preview.port, expires_at };
        (self.sign_as(SHARE_VERSION, SHARE_CONTEXT, &share), expires_at)
    }

    pub(crate) fn verify_share(&self, token: &str) -> Option<Share> {
        let share: Share = self.verify_as(SHARE_VERSION, SHARE_CONTEXT, token)?;
        (now() < share.expires_at).then_some(share)
    }

    fn sign_as(&self, version: &str, context: &str, claims: &impl Serialize) -> String {
        let payload = serde_json::to_vec(claims).unwrap_or_default(); // strings and numbers always serialize
        let payload = BASE64URL_NOPAD.encode(&payload);
        let signature = hmac::sign(&self.0[0], format!("{context}{payload}").as_bytes());
        format!("{version}{payload}.{}", BASE64URL_NOPAD.encode(signature.as_ref()))
    }

    fn verify_as<T: DeserializeOwned>(&self, version: &str, context: &str, token: &str) -> Option<T> {
        let (payload, signature) = token.strip_prefix(version)?.split_once('.')?;
        let signature = BASE64URL_NOPAD.decode(signature.as_bytes()).ok()?;
        let signed = format!("{context}{payload}");
        let is_signed = self.0.iter().any(|key| hmac::verify(key, signed.as_bytes(), &signature).is_ok());
        let payload = BASE64URL_NOPAD.decode(payload.as_bytes()).ok().filter(|_| is_signed)?;
        serde_json::from_slice(&payload).ok()
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &[u8] = b"an old secret of thirty-two bytes!";
    const NEW: &[u8] = b"a new secret of thirty-two bytes!!\n";

    #[test]
    fn a_token_of_the_old_key_is_valid_until_that_key_is_removed() {
        let old = Keys::new(&[OLD]).unwrap().sign("agents", "box", Duration::from_secs(60));
        assert!(Keys::new(&[NEW, OLD]).unwrap().verify(&old).is_some());
        assert!(Keys::new(&[NEW]).unwrap().verify(&old).is_none());
    }

    #[test]
    fn changed_expired_and_malformed_tokens_are_invalid() {
        let keys = Keys::new(&[OLD]).unwrap();
        let token = keys.sign("agents", "box", Duration::from_secs(60));
        let (payload, signature) = token[3..].split_once('.').unwrap();
        let other = BASE64URL_NOPAD.encode(br#"{"ns":"agents","name":"other","exp":99999999999}"#);
        for invalid in [
            keys.sign("agents", "box", Duration::ZERO),
            format!("v1.{other}.{signature}"),
            format!("v2.{payload}.{signature}"),
            format!("v1.{payload}."),
            format!("v1.{payload}"),
            String::new(),
        ] {
            assert_eq!(keys.verify(&invalid), None, "{invalid}");
        }
        assert!(keys.verify(&token).is_some());
    }

    #[test]
    fn a_short_secret_is_refused() {
        assert!(Keys::new(&[b"short"]).is_err_and(|error| error.contains("at least 32")));
    }
}
