//! Commands and their options.

use std::collections::HashMap;
use std::time::Duration;

use sandpod_protocol::v1::{self, command::What};

use super::policy::Policy;

/// A command.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Command {
    /// A line for the image's `/bin/sh`.
    Line(String),
    /// A program and its arguments, without a shell.
    Argv(Vec<String>),
}

impl From<&str> for Command {
    fn from(line: &str) -> Self {
        Self::Line(line.to_owned())
    }
}

impl From<String> for Command {
    fn from(line: String) -> Self {
        Self::Line(line)
    }
}

impl From<Vec<String>> for Command {
    fn from(words: Vec<String>) -> Self {
        Self::Argv(words)
    }
}

/// Options of a command.
#[derive(Clone, Debug, Default)]
pub struct ExecuteOptions {
    /// Time after which the command and all that it started are killed. Default, also for zero: never.
    pub timeout: Option<Duration>,
    /// Environment variables in addition to the sandbox's.
    pub env: HashMap<String, String>,
    /// Working directory. Default: the sandbox's.
    pub working_dir: Option<String>,
    /// Maximum number of bytes of output to keep; the rest is dropped. Default: the guest's.
    pub max_output_bytes: Option<u64>,
    /// Shell session of the line. The line starts with the working directory, exported variables, umask, options and, where the
    /// shell can print them, functions that the session's last line left. If lines run at the same time, the last one to end that
    /// changed the state wins.
    pub shell_session: Option<String>,
    /// Policy of this command. It can only narrow the sandbox's policy; a wider one is an error.
    pub policy: Option<Policy>,
}

/// Options of a started command.
#[derive(Clone, Debug, Default)]
pub struct StartOptions {
    /// Options as for `execute`. The guest chooses how much output it keeps.
    pub run: ExecuteOptions,
    /// Suspend output, and so the command, until a client reads it: nothing is lost, unless no client attaches for a minute.
    pub paced: bool,
    /// Accept input by [`Process::write`](crate::Process::write). Otherwise the input is empty.
    pub stdin: bool,
    /// Combine both outputs in the order written.
    pub combined: bool,
    /// Run in a terminal of this size, with input and combined output.
    pub terminal: Option<TerminalSize>,
}

/// Size of a terminal. Zero selects the usual size.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TerminalSize {
    /// Number of lines.
    pub rows: u16,
    /// Number of characters in a line.
    pub columns: u16,
}

impl From<ExecuteOptions> for StartOptions {
    fn from(run: ExecuteOptions) -> Self {
        Self { run, ..Self::default() }
    }
}

impl StartOptions {
    pub(super) fn message(self, command: Command) -> v1::StartRequest {
        v1::StartRequest {
            operation: None,
            command: Some(self.run.message(command)),
            paced: self.paced,
            stdin: self.stdin,
            combined: self.combined,
            terminal: self.terminal.map(TerminalSize::message),
        }
    }
}

impl TerminalSize {
    pub(super) fn message(self) -> v1::Terminal {
        v1::Terminal { rows: self.rows.into(), columns: self.columns.into() }
    }
}

impl ExecuteOptions {
    /// The timeout, if there is one.
    pub(super) fn limit(&self) -> Option<Duration> {
        self.timeout.filter(|timeout| !timeout.is_zero())
    }

    pub(super) fn message(self, command: Command) -> v1::Command {
        let timeout_ms =
            self.limit().map_or(0, |limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1));
        v1::Command {
            what: Some(match command {
                Command::Line(line) => What::Line(line),
                Command::Argv(words) => What::Argv(v1::Argv { words }),
            }),
            env: self.env,
            working_dir: self.working_dir.unwrap_or_default(),
            timeout_ms,
            max_output_bytes: self.max_output_bytes.unwrap_or_default(),
            shell_session: self.shell_session.unwrap_or_default(),
            policy: self.policy.map(Into::into),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeout_ms(timeout: Option<Duration>) -> u64 {
        ExecuteOptions { timeout, ..ExecuteOptions::default() }.message("true".into()).timeout_ms
    }

    #[test]
    fn zero_timeout_means_none_and_a_tiny_one_does_not() {
        assert_eq!(timeout_ms(None), 0);
        assert_eq!(timeout_ms(Some(Duration::ZERO)), 0);
        assert_eq!(timeout_ms(Some(Duration::from_nanos(1))), 1);
        assert_eq!(timeout_ms(Some(Duration::MAX)), u64::MAX);
    }
}
