//! Binding of a sandbox to its owner.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use sandpod_protocol::v1::{self, BindRequest, EndIfIdleRequest, ExtendRequest};

use super::Sandbox;
use super::policy::{Enforced, Policy};
use crate::connection::{Attempts, Channel};
use crate::error::Error;

/// Configuration of a sandbox for its owner.
#[derive(Clone, Debug, Default)]
pub struct Binding {
    /// The owner's claim. A sandbox bound to another claim returns an error.
    pub claim: String,
    /// Environment variables of every command.
    pub env: HashMap<String, String>,
    /// Working directory of commands. Default, if empty: the guest's.
    pub working_dir: String,
    /// Time after which the guest ends.
    pub ttl: Option<Duration>,
    /// Time without a call after which the guest ends.
    pub idle_ttl: Option<Duration>,
    /// Policy of all calls.
    pub policy: Option<Policy>,
    /// Files that are written before the first command. If one fails, the sandbox is not bound.
    pub files: Vec<BoundFile>,
    /// SHA-256 of the token of network streams from now on. `None` leaves the token unchanged.
    pub token_sha256: Option<[u8; 32]>,
    /// [`Bound::policy_sha256`] of the first Bind; `None` if the sandbox was not bound before. Another policy is an error.
    pub policy_sha256: Option<[u8; 32]>,
}

/// A file that Bind writes.
#[derive(Clone, Eq, PartialEq)]
pub struct BoundFile {
    /// Absolute path.
    pub path: String,
    /// Content.
    pub content: Bytes,
    /// Permission bits; 0 means 0644.
    pub mode: u32,
}

/// State of a bound sandbox.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Bound {
    /// The restrictions that the guest can enforce on commands.
    pub enforced: Enforced,
    /// The sandbox was bound before, with another policy, which still holds.
    pub other_policy: bool,
    /// SHA-256 of the policy that holds, also if it is empty. `None`: the guest is too old to return it.
    pub policy_sha256: Option<[u8; 32]>,
    /// [`Policy::client_rules`] of the policy that holds. Empty: none, or the guest is too old to keep them.
    pub client_rules: Bytes,
}

/// Omits the content, which may be a secret.
impl std::fmt::Debug for BoundFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { path, content, mode } = self;
        write!(f, "BoundFile {{ {path:?}, {} bytes, {mode:o} }}", content.len())
    }
}

impl Sandbox {
    /// Binds the sandbox. Repeating it with the same claim changes nothing. After a restart of the guest, the connection binds it
    /// again in the same way, or every call fails.
    pub async fn bind(&self, binding: Binding) -> Result<Bound, Error> {
        let response = self.connection.bind(binding.into()).await?;
        Ok(Bound {
            enforced: response.enforced.into(),
            other_policy: response.other_policy,
            policy_sha256: (*response.policy_sha256).try_into().ok(),
            client_rules: response.client_rules,
        })
    }

    /// Ends the sandbox `ttl` from now, whatever its time to live was. `claim` is the claim that it is bound to.
    pub async fn extend(&self, claim: impl Into<String>, ttl: Duration) -> Result<(), Error> {
        let request = ExtendRequest { claim: claim.into(), ttl_seconds: whole_seconds(Some(ttl)) };
        let attempts = Attempts::ask(&self.connection, "extending the time to live");
        let extend = |channel: Channel, request| async move { channel.session().extend(request).await };
        self.connection.ask(attempts, request, extend).await?;
        Ok(())
    }

    /// Ends the guest if no call ran for `least`, and returns whether it ends. If it does, it starts no further call.
    pub async fn end_if_idle(&self, claim: impl Into<String>, least: Duration) -> Result<bool, Error> {
        // Rounded up to the protocol's unit.
        let idle_ms = least.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(u64::MAX);
        let request = EndIfIdleRequest { claim: claim.into(), idle_ms };
        let attempts = Attempts::ask(&self.connection, "ending it if it is idle");
        let end = |channel: Channel, request| async move { channel.session().end_if_idle(request).await };
        Ok(self.connection.ask(attempts, request, end).await?.ends)
    }
}

impl From<Binding> for BindRequest {
    fn from(binding: Binding) -> Self {
        let file =
            |file: BoundFile| v1::BoundFile { path: file.path, content: file.content, mode: file.mode };
        Self {
            claim: binding.claim,
            env: binding.env,
            working_dir: binding.working_dir,
            ttl_seconds: whole_seconds(binding.ttl),
            idle_ttl_seconds: whole_seconds(binding.idle_ttl),
            policy: binding.policy.map(Into::into),
            files: binding.files.into_iter().map(file).collect(),
            token_sha256: binding.token_sha256.map(|digest| digest.to_vec().into()).unwrap_or_default(),
            policy_sha256: binding.policy_sha256.map(|digest| digest.to_vec().into()).unwrap_or_default(),
        }
    }
}

/// Rounds up, because 0 means no limit.
fn whole_seconds(duration: Option<Duration>) -> u64 {
    duration.map_or(0, |duration| duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0)))
}
