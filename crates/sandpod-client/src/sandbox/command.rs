//! What to run, and how.

use std::collections::HashMap;
use std::time::Duration;

use sandpod_protocol::v1::{self, command::What};

use super::policy::Policy;

/// What to run.
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

/// How to run it.
#[derive(Clone, Debug, Default)]
pub struct ExecuteOptions {
    /// When to end it, with all that it started; nothing or zero: never.
    pub timeout: Option<Duration>,
    /// Added to the sandbox's own.
    pub env: HashMap<String, String>,
    /// Where to run it, if not in the sandbox's own directory.
    pub working_dir: Option<String>,
    /// What is kept of the output, if not the default; the rest is dropped.
    pub max_output_bytes: Option<u64>,
    /// The shell session that a line takes part in: it finds the directory, the exported variables, the
    /// umask, the options and, where the shell can print them, the functions that the session's last line
    /// left behind. Of lines at the same time that is the last to end that changed anything.
    pub shell_session: Option<String>,
    /// Narrows what the sandbox is bound to; one that is wider is refused.
    pub policy: Option<Policy>,
}

/// How to start it.
#[derive(Clone, Debug, Default)]
pub struct StartOptions {
    /// How to run it; what is kept of the output is the guest's choice.
    pub run: ExecuteOptions,
    /// Its output waits for whoever attaches, and so does the command: nothing is lost, unless nobody
    /// attaches for a minute.
    pub paced: bool,
    /// It reads what [`Process::write`](crate::Process::write) writes; otherwise its input is empty.
    pub stdin: bool,
    /// Both outputs as one, in the order written.
    pub combined: bool,
    /// It runs in a terminal of this size, with input and combined output.
    pub terminal: Option<TerminalSize>,
}

/// The size of a terminal; zero is as usual.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
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
    /// The time limit, if there is one.
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
    fn a_zero_timeout_is_none_and_a_tiny_one_is_not() {
        assert_eq!(timeout_ms(None), 0);
        assert_eq!(timeout_ms(Some(Duration::ZERO)), 0);
        assert_eq!(timeout_ms(Some(Duration::from_nanos(1))), 1);
        assert_eq!(timeout_ms(Some(Duration::MAX)), u64::MAX);
    }
}
