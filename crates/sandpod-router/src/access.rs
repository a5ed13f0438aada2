//! Who may use which sandbox.
//!
//! A request is admitted by the first of the configured ways that knows its credential:
//! a [scoped token](scoped_token), or a Kubernetes token or client certificate that the API server [reviews](reviews).

pub mod reviews;
pub mod scoped_token;

use http::HeaderMap;
use http::header::AUTHORIZATION;

use crate::refusal::Refusal;
use crate::target::Target;
use reviews::{Reviews, User};
use scoped_token::Keys;

/// The configured ways to prove who calls.
#[derive(Clone, Default)]
pub struct Access {
    /// Verifies scoped tokens.
    pub keys: Option<Keys>,
    /// Lets the API server review Kubernetes tokens and certificates.
    pub reviews: Option<Reviews>,
    /// Admits every request. The router logs this at its start.
    pub is_open: bool,
}

/// An admitted caller, as limits and logs name it.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Caller {
    /// No credential was required.
    Anonymous,
    /// The holder of a token for this one sandbox.
    TokenHolder {
        /// The namespace of the sandbox.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A user of the cluster.
    User(String),
}

impl std::fmt::Display for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Anonymous => f.write_str("anonymous"),
            Self::TokenHolder { namespace, name } => write!(f, "token of {namespace}/{name}"),
            Self::User(name) => f.write_str(name),
        }
    }
}

impl Access {
    /// Admits a request for `target`, or refuses it.
    pub async fn admit(
        &self,
        headers: &HeaderMap,
        certificate: Option<&User>,
        target: &Target,
    ) -> Result<Caller, Refusal> {
        if self.is_open {
            return Ok(Caller::Anonymous);
        }
        match (bearer(headers)?, certificate, &self.reviews) {
            (Some(token), ..) if scoped_token::is_scoped(token) && self.keys.is_some() => {
                self.admit_scoped(token, target)
            }
            (Some(token), _, Some(reviews)) => {
                let user = reviews.user_of(token).await?;
                reviews.admit(&user, target).await
            }
            (None, Some(user), Some(reviews)) => reviews.admit(user, target).await,
            _ => Err(Refusal::unauthenticated()),
        }
    }

    fn admit_scoped(&self, token: &str, target: &Target) -> Result<Caller, Refusal> {
        let keys = self.keys.as_ref().ok_or_else(Refusal::unauthenticated)?;
        let scope = keys.verify(token).ok_or_else(Refusal::unauthenticated)?;
        if target.names_a_pod || (scope.namespace != target.namespace || scope.name != target.id) {
            return Err(Refusal::forbidden());
        }
        Ok(Caller::TokenHolder { namespace: scope.namespace, name: scope.name })
    }
}

/// The bearer token of a request. Two Authorization headers could be two callers.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return if headers.contains_key(AUTHORIZATION) { Err(Refusal::unauthenticated()) } else { Ok(None) };
    };
    let value = value.to_str().map_err(|_| Refusal::unauthenticated())?;
    let (scheme, token) = value.split_once(' ').ok_or_else(Refusal::unauthenticated)?;
    if scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty() {
        Ok(Some(token.trim()))
    } else {
        Err(Refusal::unauthenticated())
    }
}
