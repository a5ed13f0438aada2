//! Authorization: each request proves its caller, and the caller's right to the sandbox.
//!
//! `Access::authenticate` reads the credential: a [scoped token](crate::scoped_token), a Kubernetes token or a client certificate.
//! `Access::authorize` compares it with the sandbox that the request was resolved to, or lets the API server
//! [review](reviews) the right.

pub mod reviews;

use http::HeaderMap;
use http::header::AUTHORIZATION;

use crate::refusal::Refusal;
use crate::scoped_token::{self, Keys, Scope};
use crate::target::{Name, SandboxRef, Target};
use reviews::{Object, Reviews, User};

/// The configured ways to prove a caller.
#[derive(Clone, Default)]
pub struct Access {
    /// Verifies scoped tokens.
    pub keys: Option<Keys>,
    /// Signs and verifies shared preview links.
    pub share_keys: Option<Keys>,
    /// Lets the API server review Kubernetes tokens and certificates.
    pub reviews: Option<Reviews>,
    /// Admits every request. The router logs this when it starts.
    pub is_open: bool,
}

/// A caller that has proved itself.
pub(crate) enum Identity {
    /// No proof is required.
    Anonymous,
    Scoped(Scope),
    User(User),
}

/// An admitted caller, as limits and logs name it.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Caller {
    /// No credential was required.
    Anonymous,
    /// The holder of a token for this one sandbox.
    TokenHolder(SandboxRef),
    /// The holder of a shared link to a port of this sandbox.
    LinkHolder(SandboxRef),
    /// A user of the cluster.
    User(String),
}

impl std::fmt::Display for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Anonymous => f.write_str("anonymous"),
            Self::TokenHolder(sandbox) => write!(f, "token of {sandbox}"),
            Self::LinkHolder(sandbox) => write!(f, "shared link of {sandbox}"),
            Self::User(name) => f.write_str(name),
        }
    }
}

impl Access {
    /// Checks the credential of a request.
    pub(crate) async fn authenticate(
        &self,
        headers: &HeaderMap,
        certificate: Option<&User>,
    ) -> Result<Identity, Refusal> {
        if self.is_open {
            return Ok(Identity::Anonymous);
        }
        match (bearer(headers)?, certificate, &self.reviews) {
            (Some(token), ..) if scoped_token::is_scoped(token) && self.keys.is_some() => {
                let scope = self.keys.as_ref().and_then(|keys| keys.verify(token));
                scope.map(Identity::Scoped).ok_or_else(Refusal::unauthenticated)
            }
            (Some(token), _, Some(reviews)) => reviews.user_of(token).await.map(Identity::User),
            (None, Some(user), Some(_)) => Ok(Identity::User(user.clone())),
            _ => Err(Refusal::unauthenticated()),
        }
    }

    /// Checks the caller's right to the sandbox that `target` was resolved to, or to the claim that owns it.
    ///
    /// Without a right the answer is the same for sandboxes that exist and for others.
    pub(crate) async fn authorize(
        &self,
        identity: Identity,
        target: &Target,
        sandbox: Option<&SandboxRef>,
        claim: Option<String>,
    ) -> Result<Caller, Refusal> {
        match (identity, &self.reviews) {
            (Identity::Anonymous, _) => Ok(Caller::Anonymous),
            (Identity::Scoped(scope), _) => {
                let scope = SandboxRef::new(scope.namespace, scope.name);
                let is_permitted = sandbox == Some(&scope) && !target.names_a_pod;
                if is_permitted { Ok(Caller::TokenHolder(scope)) } else { Err(Refusal::forbidden()) }
            }
            (Identity::User(user), Some(reviews)) => {
                for object in objects(target, sandbox, claim) {
                    if reviews.is_allowed(&user, &object).await? {
                        return Ok(Caller::User(user.name));
                    }
                }
                Err(Refusal::forbidden())
            }
            (Identity::User(_), None) => Err(Refusal::unauthenticated()),
        }
    }
}

/// The objects of which one must permit the caller: the one that the request names first.
fn objects(target: &Target, sandbox: Option<&SandboxRef>, claim: Option<String>) -> Vec<Object> {
    let sandbox_object = sandbox.map(|sandbox| Object::Sandbox(sandbox.clone()));
    let namespace = sandbox.map(|sandbox| sandbox.namespace.as_str()).or(target.namespace.as_deref());
    let named = match &target.name {
        Name::Claim(claim) => Some(claim.clone()),
        Name::Sandbox(_) | Name::Uid(_) => claim,
    };
    let claim =
        named.zip(namespace).map(|(claim, namespace)| Object::Claim(SandboxRef::new(namespace, claim)));
    match &target.name {
        Name::Claim(_) => claim.into_iter().chain(sandbox_object).collect(),
        Name::Sandbox(_) | Name::Uid(_) => sandbox_object.into_iter().chain(claim).collect(),
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
