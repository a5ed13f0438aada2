//! Resource usage of a sandbox.

use std::time::Duration;

use sandpod_protocol::v1::{StatsRequest, StatsResponse};

use super::Sandbox;
use super::policy::Enforced;
use crate::connection::{Attempts, Channel, Greeting};
use crate::error::Error;

/// Resource usage and limits of a sandbox.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Time since the guest started.
    pub uptime: Duration,
    /// Memory in use, if known.
    pub memory_bytes: Option<u64>,
    /// Memory limit.
    pub memory_limit_bytes: Option<u64>,
    /// Number of processes and threads, if known.
    pub tasks: Option<u64>,
    /// Limit on processes and threads.
    pub task_limit: Option<u64>,
    /// Number of running commands.
    pub commands: u64,
    /// The restrictions that the guest can enforce on commands.
    pub enforced: Enforced,
    /// Exit code of the sandbox's main command, if it has one that ended.
    pub command_exit: Option<i32>,
    /// Time until the guest ends if no further call arrives.
    pub ttl_left: Option<Duration>,
}

impl Sandbox {
    /// Returns the guest's answer to Hello, with the restrictions that it enforces.
    pub async fn info(&self) -> Result<Greeting, Error> {
        self.connection.greeting().await
    }

    /// Returns the current resource usage.
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
