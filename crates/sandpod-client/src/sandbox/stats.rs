//! How a sandbox is.

use std::time::Duration;

use sandpod_protocol::v1::{StatsRequest, StatsResponse};

use super::Sandbox;
use super::policy::Enforced;
use crate::connection::{Attempts, Channel, Greeting};
use crate::error::Error;

/// What a sandbox uses, and what holds in it.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Since when its guest runs.
    pub uptime: Duration,
    /// The memory that all of it takes, if it is known.
    pub memory_bytes: Option<u64>,
    /// The memory that it may take, if there is a limit.
    pub memory_limit_bytes: Option<u64>,
    /// Its processes and threads, if it is known.
    pub tasks: Option<u64>,
    /// The processes and threads that it may have, if there is a limit.
    pub task_limit: Option<u64>,
    /// Commands that run now.
    pub commands: u64,
    /// What commands are held to.
    pub enforced: Enforced,
    /// How the command that the sandbox was made with ended, if there is one and it did.
    pub command_exit: Option<i32>,
    /// After how long the guest ends by itself if there is no further call, if it does.
    pub ttl_left: Option<Duration>,
}

impl Sandbox {
    /// What the guest says of itself, with what it holds commands to.
    pub async fn info(&self) -> Result<Greeting, Error> {
        self.connection.greeting().await
    }

    /// What the sandbox uses now.
    pub async fn stats(&self) -> Result<Stats, Error> {
        let attempts = Attempts::ask(&self.connection, "the stats");
        let send = |channel: Channel, request| async move { channel.session().stats(request).await };
        Ok(self.connection.ask(attempts, StatsRequest {}, send).await?.into())
    }
}

impl From<StatsResponse> for Stats {
    fn from(stats: StatsResponse) -> Self {
        let known = |number: u64| Some(number).filter(|number| *number > 0);
        Self {
            uptime: Duration::from_millis(stats.uptime_ms),
            memory_bytes: known(stats.memory_bytes),
            memory_limit_bytes: known(stats.memory_limit_bytes),
            tasks: known(stats.tasks),
            task_limit: known(stats.task_limit),
            commands: stats.commands,
            enforced: stats.enforced.into(),
            command_exit: stats.command_exit.filter(|code| (0..=255).contains(code)),
            ttl_left: stats.ttl_left_ms.map(Duration::from_millis),
        }
    }
}
