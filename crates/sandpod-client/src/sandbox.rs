//! Every operation on a sandbox.

mod command;
mod execute;
mod files;
mod process;
mod search;
mod transfer;

use std::collections::HashMap;
use std::time::Duration;

use sandpod_protocol::v1::{BindRequest, ExtendRequest};

pub use command::{Command, ExecuteOptions};
pub use execute::Executed;
pub use files::{Edited, FileInfo, FileKind, Page, ReadOptions, TextPage, Written};
pub use process::{Event, Exit, Process};
pub use search::{Found, GrepMatch, GrepOptions, Grepped, Incomplete};

use crate::connection::{Attempts, Connection};
use crate::error::{Error, Notice};

/// A sandbox: commands, files, searches, transfers. Clones are the same sandbox, and every future
/// may be dropped at any time.
#[derive(Clone, Debug)]
pub struct Sandbox {
    connection: Connection,
}

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
}

impl Sandbox {
    /// The sandbox at the other end of a connection.
    #[must_use]
    pub fn new(connection: Connection) -> Self {
        Self { connection }
    }

    /// The way to the sandbox.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// What happened since this was asked last; `execute` asks for its own result.
    #[must_use]
    pub fn take_notices(&self) -> Vec<Notice> {
        self.connection.take_notices()
    }

    /// Sets the sandbox up; again for the same claim changes nothing.
    pub async fn bind(&self, binding: Binding) -> Result<(), Error> {
        let request = BindRequest {
            claim: binding.claim,
            env: binding.env,
            working_dir: binding.working_dir,
            ttl_seconds: whole_seconds(binding.ttl),
            idle_ttl_seconds: whole_seconds(binding.idle_ttl),
            ..BindRequest::default()
        };
        let attempts = Attempts::ask(&self.connection, "setting the sandbox up");
        let bind = |channel: crate::connection::Channel, request| async move {
            channel.session().bind(request).await
        };
        self.connection.ask(attempts, request, bind).await?;
        Ok(())
    }

    /// Lets the sandbox end after `ttl` from now, whatever it was given before; `claim` is what it was bound with.
    pub async fn extend(&self, claim: impl Into<String>, ttl: Duration) -> Result<(), Error> {
        let request = ExtendRequest { claim: claim.into(), ttl_seconds: whole_seconds(Some(ttl)) };
        let attempts = Attempts::ask(&self.connection, "giving the sandbox more time");
        let extend = |channel: crate::connection::Channel, request| async move {
            channel.session().extend(request).await
        };
        self.connection.ask(attempts, request, extend).await?;
        Ok(())
    }
}

/// Rounded up: 0 means for ever.
fn whole_seconds(duration: Option<Duration>) -> u64 {
    duration.map_or(0, |duration| duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0)))
}
