//! Setting a sandbox up for its owner.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use sandpod_protocol::v1::{self, BindRequest, EndIfIdleRequest, ExtendRequest};

use super::Sandbox;
use super::policy::{Enforced, Policy};
use crate::connection::{Attempts, Channel};
use crate::error::Error;

/// What a sandbox is set up with for its owner.
#[derive(Clone, Debug, Default)]
pub struct Binding {
    /// Names the owner's claim; a sandbox bound to another one refuses.
    pub claim: String,
    /// For every command.
    pub env: HashMap<String, String>,
    /// Where commands start; the guest's own choice if empty.
    pub working_dir: String,
    /// The guest ends after so long.
    pub ttl: Option<Duration>,
    /// The guest ends after so long without a call.
    pub idle_ttl: Option<Duration>,
    /// What calls may touch.
    pub policy: Option<Policy>,
    /// Written before the first command: all, or the sandbox is not set up.
    pub files: Vec<BoundFile>,
    /// SHA-256 of the token that opens streams over the network from now on; without one it stays as it was.
    pub token_sha256: Option<[u8; 32]>,
    /// [`Bound::policy_sha256`] of the first time; none: the sandbox was not set up before. Another policy is an error.
    pub policy_sha256: Option<[u8; 32]>,
}

/// A file that a sandbox is set up with.
#[derive(Clone, Eq, PartialEq)]
pub struct BoundFile {
    /// Where it is.
    pub path: String,
    /// What is in it.
    pub content: Bytes,
    /// Its permission bits; 0 is 0644.
    pub mode: u32,
}

/// What holds in a sandbox that was set up.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Bound {
    /// What it can hold commands to.
    pub enforced: Enforced,
    /// It was set up before, with another policy than this time: that one holds.
    pub other_policy: bool,
    /// SHA-256 of the policy that holds, also if there is none. None: the guest is too old to return it.
    pub policy_sha256: Option<[u8; 32]>,
}

/// The content may be a secret.
impl std::fmt::Debug for BoundFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { path, content, mode } = self;
        write!(f, "BoundFile {{ {path:?}, {} bytes, {mode:o} }}", content.len())
    }
}

impl Sandbox {
    /// Sets the sandbox up; again for the same claim changes nothing. After a restart of the guest the connection sets it up
    /// as it was, or every call fails.
    pub async fn bind(&self, binding: Binding) -> Result<Bound, Error> {
        let response = self.connection.bind(binding.into()).await?;
        Ok(Bound {
            enforced: response.enforced.into(),
            other_policy: response.other_policy,
            policy_sha256: (*response.policy_sha256).try_into().ok(),
        })
    }

    /// Lets the sandbox end after `ttl` from now, whatever it was given before; `claim` is what it was bound with.
    pub async fn extend(&self, claim: impl Into<String>, ttl: Duration) -> Result<(), Error> {
        let request = ExtendRequest { claim: claim.into(), ttl_seconds: whole_seconds(Some(ttl)) };
        let attempts = Attempts::ask(&self.connection, "giving the sandbox more time");
        let extend = |channel: Channel, request| async move { channel.session().extend(request).await };
        self.connection.ask(attempts, request, extend).await?;
        Ok(())
    }

    /// Ends the sandbox's guest if no call ran for `least`, and says whether it ends. It begins no further call then.
    pub async fn end_if_idle(&self, claim: impl Into<String>, least: Duration) -> Result<bool, Error> {
        // Rounded up to what the wire has.
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

/// Rounded up: 0 means for ever.
fn whole_seconds(duration: Option<Duration>) -> u64 {
    duration.map_or(0, |duration| duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0)))
}
