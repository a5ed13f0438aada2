//! The tokens that open guests over the network.
//!
//! The guests of a template start with the hash of one secret. Bind replaces it with a token of the claim alone. That
//! is derived from the secret and the claim's UID, so every process with the secret computes the same token, and no
//! token reveals another.
//!
//! The secret is in a file, or in a Secret of the namespace ([`AgentSandbox::find_secret`]). A process that has neither
//! makes a [`Key::Own`] token, which Bind takes to the guest through an exec stream.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use data_encoding::BASE32_NOPAD;
use ring::hmac;
use sandpod_client::Token;
use sandpod_kube::k8s_openapi::api::core::v1::Secret;
use sandpod_kube::kube::{Api, ResourceExt as _};

use super::AgentSandbox;
use super::claims::Claim;
use crate::backend::kubernetes::api::find;
use crate::{Error, ErrorKind, Result};

/// Names the file with the secret if `guest_token_file` is not set. This is the only variable that is always read:
/// constructors with another package's parameters have no place for the option.
const FILE_VARIABLE: &str = "SANDPOD_GUEST_TOKEN_FILE";
/// The Secret that holds the secret, its label and its key. The name is fixed, so that a role can allow this Secret
/// alone.
const SECRET: &str = "sandpod-guest-token";
const SECRET_LABEL: (&str, &str) = ("sandpod.dev/guest-token", "true");
const SECRET_KEY: &str = "token";
/// The size of a token that a process makes for itself.
const OWN_TOKEN_BYTES: usize = 32;

/// What a process opens guests with.
#[derive(Clone)]
pub(super) enum Key {
    /// The secret of the template's guests.
    Secret(Vec<u8>),
    /// A token of this process alone.
    Own(Token),
}

impl Key {
    /// Returns a new random token.
    pub(super) fn new_own() -> Result<Self> {
        let mut token = [0; OWN_TOKEN_BYTES];
        getrandom::fill(&mut token).map_err(|cause| {
            let message = format!("No random bytes for a token: {cause}.");
            Error::new(ErrorKind::Internal, message, "Check the system's random number generator.")
        })?;
        Ok(Self::Own(Token::new(BASE32_NOPAD.encode(&token))))
    }

    /// Returns the token that opens the claim's guest once it is bound.
    fn token(&self, claim: &Claim) -> Token {
        match self {
            Self::Secret(secret) => derive(secret, claim),
            Self::Own(token) => token.clone(),
        }
    }

    /// Returns the hash of that token, for the guest.
    pub(super) fn token_sha256(&self, claim: &Claim) -> [u8; 32] {
        self.token(claim).sha256()
    }

    pub(super) fn tokens(&self, claim: &Claim) -> Tokens {
        let token = self.token(claim);
        let before = match self {
            // Only Bind tells the guest this token, on a stream that needs none.
            Self::Own(_) => Some(Vec::new()),
            // Whether the guest of an adopted claim is bound is not recorded.
            Self::Secret(secret) if claim.adopted => Some(vec![token.clone(), Token::new(secret.clone())]),
            Self::Secret(_) if claim.is_bound() => None,
            // Another process may be binding it just now.
            Self::Secret(secret) => Some(vec![Token::new(secret.clone()), token.clone()]),
        };
        Tokens { token, before: Mutex::new(before) }
    }
}

/// The tokens that open the guest of a claim.
pub(super) struct Tokens {
    token: Token,
    /// For streams until we have bound the guest. The secret is never sent to a guest that is known to be bound.
    before: Mutex<Option<Vec<Token>>>,
}

impl Tokens {
    /// Returns the tokens for the next stream, the likeliest first.
    pub(super) fn next(&self) -> Vec<Token> {
        let before = self.before.lock().unwrap_or_else(PoisonError::into_inner).clone();
        before.unwrap_or_else(|| vec![self.token.clone()])
    }

    /// Records that the guest has answered our Bind.
    pub(super) fn note_bound(&self) {
        self.before.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl AgentSandbox {
    /// Returns the secret of the template's guests, if this machine has it.
    pub(super) fn local_secret(&self) -> Result<Option<Vec<u8>>> {
        let named = self.0.config.guest_token_file.clone();
        secret_file(named, std::env::var_os(FILE_VARIABLE)).as_deref().map(read).transpose()
    }

    /// Returns the secret of the template's guests: this machine's or the namespace's. If there is none, returns where
    /// it was looked for.
    pub(super) async fn find_secret(&self) -> Result<Result<Vec<u8>, String>> {
        if let Some(secret) = self.local_secret()? {
            return Ok(Ok(secret));
        }
        let why = match self.namespace_secret().await {
            Ok(secret) => return Ok(Ok(secret)),
            Err(why) => why,
        };
        Ok(Err(format!("guest_token_file and {FILE_VARIABLE} are not set; {why}")))
    }

    /// Returns the secret in the namespace, or why it can't be used.
    async fn namespace_secret(&self) -> Result<Vec<u8>, String> {
        let namespace = &self.0.config.namespace;
        let secrets: Api<Secret> = Api::namespaced(self.0.client.clone(), namespace);
        let found = find(&secrets, SECRET).await.map_err(|error| match error.kind() {
            ErrorKind::Denied => format!("Secret '{SECRET}' in namespace '{namespace}' may not be read"),
            _ => error.message().trim_end_matches('.').to_owned(),
        })?;
        let found = found.ok_or_else(|| format!("Secret '{SECRET}' not found in namespace '{namespace}'"))?;
        let (label, value) = SECRET_LABEL;
        if found.labels().get(label).map(String::as_str) != Some(value) {
            return Err(format!(
                "Secret '{SECRET}' in namespace '{namespace}' lacks the label {label}={value}"
            ));
        }
        let token = found.data.and_then(|mut data| data.remove(SECRET_KEY)).unwrap_or_default();
        match token.0.trim_ascii() {
            [] => Err(format!(
                "Secret '{SECRET}' in namespace '{namespace}' has no value at the key {SECRET_KEY}"
            )),
            token => Ok(token.to_vec()),
        }
    }
}

/// Returns the file that holds the secret: the option's, else the variable's.
fn secret_file(option: Option<PathBuf>, variable: Option<OsString>) -> Option<PathBuf> {
    option.or_else(|| variable.filter(|path| !path.is_empty()).map(PathBuf::from))
}

/// Reads a file without the newline at its end.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    let text = std::fs::read(path).map_err(|cause| unreadable(path, &cause.to_string()))?;
    match text.trim_ascii() {
        [] => Err(unreadable(path, "it is empty")),
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
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    Token::new(BASE32_NOPAD.encode(hmac::sign(&key, message.as_bytes()).as_ref()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(labels: &Value, annotations: &Value) -> Claim {
        let claim = json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
            "metadata": { "name": "a", "uid": "1", "resourceVersion": "2", "labels": labels, "annotations": annotations },
            "spec": { "warmPoolRef": { "name": "pool" } },
        });
        Claim::read_any(serde_json::from_value(claim).unwrap()).unwrap()
    }

    fn tokens(labels: &Value, annotations: &Value) -> Tokens {
        Key::Secret(b"secret".to_vec()).tokens(&claim(labels, annotations))
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
    fn the_option_comes_before_the_variable_and_an_empty_variable_is_none() {
        let (option, variable) = (PathBuf::from("/option"), OsString::from("/variable"));
        assert_eq!(secret_file(Some(option.clone()), Some(variable.clone())), Some(option));
        assert_eq!(secret_file(None, Some(variable)), Some("/variable".into()));
        assert_eq!(secret_file(None, Some(OsString::new())), None);
    }

    #[test]
    fn token_of_a_claim_is_the_hmac_of_its_uid_and_generation() {
        let claim = claim(&json!({}), &json!({ "sandpod.dev/generation": "1" }));
        // python3 -c 'import base64, hmac; print(base64.b32encode(hmac.digest(b"secret", b"sandpod claim token 1\x001\x001", "sha256")))'
        let expected = Token::new("GZAFP6JEEHTLHAGEY2JCGR346BMAC25O2LNJAYUCHK7W7ENMILRQ");
        assert_eq!(derive(b"secret", &claim).sha256(), expected.sha256());
    }

    #[test]
    fn a_token_file_holds_one_token_and_a_newline_is_no_part_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "secret\n").unwrap();
        assert_eq!(read(&path).unwrap(), b"secret");
        std::fs::write(&path, "\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("it is empty"));
    }
}
