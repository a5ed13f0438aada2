//! Exit codes and the form of error messages. The codes from 1 to 10 are those of the library's error table.
//!
//! | code | meaning |
//! | --- | --- |
//! | 0 | done |
//! | 1 | something that should not happen; for grep, glob and doctor: nothing found, or something wrong found |
//! | 2 | `invalid_input`: the command or an option is wrong |
//! | 3 | `not_found`: there is no such sandbox, file or process |
//! | 4 | `already_exists`: it is there already, or in use |
//! | 5 | `denied`: not allowed: a right, a policy, a file's mode |
//! | 6 | `quota_exceeded`: a quota or limit is reached |
//! | 7 | `start_failed`: the sandbox can't start |
//! | 8 | `timeout`: it took longer than it may |
//! | 9 | `unavailable`: not reachable now; later it may work |
//! | 10 | `unsupported`: this version, mode or cluster can't do it |
//! | 124 | the command in the sandbox ran out of time |
//! | 125 | the command in the sandbox never started |
//! | 128 + n | signal n ended the command in the sandbox, or this one |
//! | 255 | nobody knows what became of the command in the sandbox |

use std::fmt;
use std::io;
use std::process::ExitCode;

use sandpod::{CallError, Error, ErrorCode, ErrorKind, Escaped};
use serde_json::{Value, json};

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// The command in the sandbox never started.
pub(crate) const NEVER_STARTED: u8 = 125;
/// Nobody knows what became of the command in the sandbox.
pub(crate) const UNKNOWN: u8 = 255;
/// Whoever reads our output has gone: as if SIGPIPE had ended us.
const BROKEN_PIPE: u8 = 128 + 13;

/// Why the command could not do what it was asked for: what happened, what to do next, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    kind: ErrorKind,
    message: String,
    next: String,
    /// A JSON value that was printed has it already.
    is_printed: bool,
}

impl Failure {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>, next: impl Into<String>) -> Self {
        Self { code: kind.exit_code(), kind, message: message.into(), next: next.into(), is_printed: false }
    }

    /// The caller's mistake.
    pub(crate) fn usage(message: impl Into<String>, next: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, message, next)
    }

    /// A signal ended us.
    pub(crate) fn interrupted(signal: i32) -> Self {
        Self::silent(u8::try_from(128 + signal).unwrap_or(UNKNOWN))
    }

    /// An end that needs no words.
    fn silent(code: u8) -> Self {
        Self { code, ..Self::new(ErrorKind::Internal, "", "") }
    }

    /// Trouble with a file or stream of this machine.
    pub(crate) fn local(what: &str, cause: &io::Error) -> Self {
        if cause.kind() == io::ErrorKind::BrokenPipe {
            return Self::silent(BROKEN_PIPE);
        }
        let (kind, next) = match cause.kind() {
            io::ErrorKind::NotFound => (ErrorKind::NotFound, "Check the path."),
            io::ErrorKind::PermissionDenied => (ErrorKind::Denied, "Check who may read and write it."),
            io::ErrorKind::AlreadyExists => (ErrorKind::AlreadyExists, "Choose another name, or remove it."),
            io::ErrorKind::StorageFull => (ErrorKind::QuotaExceeded, "Make room on the disk."),
            _ => (ErrorKind::Internal, "Try again."),
        };
        Self::new(kind, format!("Can't {what}: {cause}."), next)
    }

    /// The same failure when the exit code belongs to the command in the sandbox, which has not started.
    #[must_use]
    pub(crate) fn before_start(self) -> Self {
        // A signal and a broken pipe are told apart from the command's own codes by their numbers already.
        if self.message.is_empty() { self } else { Self { code: NEVER_STARTED, ..self } }
    }

    /// The same failure when the exit code belongs to the command in the sandbox, which has started.
    #[must_use]
    pub(crate) fn after_start(self) -> Self {
        if self.message.is_empty() { self } else { Self { code: UNKNOWN, ..self } }
    }

    /// A call to start a command that failed: the command may run nevertheless if the call was sent.
    pub(crate) fn of_start(error: CallError) -> Self {
        let is_unknown = error.is_outcome_unknown();
        let failure = Self::from(error);
        if is_unknown { failure.after_start() } else { failure.before_start() }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }

    /// What to do about it.
    pub(crate) fn next(&self) -> &str {
        &self.next
    }

    /// The time is up in which an answer had to come.
    pub(crate) fn is_timeout(&self) -> bool {
        self.kind == ErrorKind::Timeout
    }

    /// There is nothing to say: a signal or a closed pipe needs no words.
    pub(crate) fn is_silent(&self) -> bool {
        self.message.is_empty()
    }

    /// The failure as JSON; nothing for an end that needs no words.
    pub(crate) fn value(&self) -> Option<Value> {
        let value = || json!({ "code": self.kind.as_str(), "message": self.message, "next": self.next });
        (!self.is_silent()).then(value)
    }

    /// The same failure, which a JSON value on stdout has already.
    #[must_use]
    pub(crate) fn printed(self) -> Self {
        Self { is_printed: true, ..self }
    }

    pub(crate) fn is_printed(&self) -> bool {
        self.is_printed
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", visible(&self.message))?;
        if self.next.is_empty() { Ok(()) } else { write!(f, "\n  next: {}", visible(&self.next)) }
    }
}

/// Text without escapes. Its further lines stand behind a bar, so that none of them can pose as one of ours.
pub(crate) fn visible(text: &str) -> String {
    Escaped(text).whole().replace('\n', "\n  | ")
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.kind(), error.message(), error.next_step())
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let next = match &error {
            CallError::Failure(failure) => next(error.kind(), failure.code(), failure.message()),
            CallError::PathEscapes(_) => "Name a path below root_dir, without '..'.",
            _ => "", // They say it themselves.
        };
        Self::new(error.kind(), sentence(&error.to_string()), next)
    }
}

/// A message as a sentence: without the code word that some begin with for programs, and with a capital.
pub(crate) fn sentence(message: &str) -> String {
    let is_code = |word: &str| word.contains('_') && word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let words = match message.split_once(": ") {
        Some((first, rest)) if is_code(first) => rest,
        _ => message,
    };
    let mut characters = words.chars();
    let first = characters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    let stop = if words.ends_with('.') { "" } else { "." };
    format!("{first}{}{stop}", characters.as_str())
}

/// How a guest begins to say that a process is not there, or not any more.
const PROCESS: [&str; 2] = ["there is no process ", "the process "];

/// What to do when a guest said no.
fn next(kind: ErrorKind, code: ErrorCode, message: &str) -> &'static str {
    match code {
        ErrorCode::IsDirectory => "See what is in it with `sandpod ls`.",
        ErrorCode::NotADirectory => "See with `sandpod ls` which part of the path is no directory.",
        ErrorCode::TooLarge => "Take less at once, or copy it with `sandpod cp`.",
        ErrorCode::PermissionDenied if message.contains("Read-only file system") => {
            "Change what is in the directory where commands start, in their home or in /tmp: most else stays as it is."
        }
        _ => match kind {
            ErrorKind::NotFound if PROCESS.iter().any(|beginning| message.starts_with(beginning)) => {
                "See which there are with `sandpod ps`."
            }
            ErrorKind::NotFound => "See what is there with `sandpod ls`.",
            ErrorKind::AlreadyExists => "Choose another path, or remove what is there with `sandpod rm`.",
            ErrorKind::Denied => {
                "See its mode and owner with `sandpod ls`; commands run as another user than you."
            }
            ErrorKind::QuotaExceeded => "Remove files or end commands in the sandbox, or make one with more.",
            ErrorKind::InvalidInput => "Give it otherwise: `--help` after the command shows how.",
            ErrorKind::Unsupported => "Use a sandbox of this version: make a new one with `sandpod create`.",
            _ => "Try again.",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_failure_has_its_documented_exit_code() {
        let documented = include_str!("exit.rs");
        let kinds = ErrorKind::ALL.iter().filter(|kind| **kind != ErrorKind::Internal);
        for kind in kinds {
            let row = format!("//! | {} | `{}`", kind.exit_code(), kind.as_str());
            assert!(documented.contains(&row), "{row}");
        }
    }

    #[test]
    fn a_start_without_an_answer_is_not_said_to_have_failed() {
        let (what, reason) = ("starting a command".to_owned(), "the guest did not answer".to_owned());
        let limit = std::time::Duration::from_secs(10);
        let unknown = Failure::of_start(CallError::DeadlineExceeded { what, limit, reason: reason.clone() });
        assert_eq!(unknown.exit_code(), ExitCode::from(UNKNOWN));
        assert!(unknown.is_timeout());
        let undone = Failure::of_start(CallError::Unreachable { reason, waited: limit });
        assert_eq!(undone.exit_code(), ExitCode::from(NEVER_STARTED));
    }

    #[test]
    fn a_path_that_escapes_its_root_is_the_callers_mistake() {
        let failure = Failure::from(CallError::PathEscapes("Path '..' escapes root_dir '/app'".to_owned()));
        assert_eq!(failure.exit_code(), ExitCode::from(2));
        let lines =
            "error: Path '..' escapes root_dir '/app'.\n  next: Name a path below root_dir, without '..'.";
        assert_eq!(failure.to_string(), lines);
    }

    #[test]
    fn what_happened_and_what_to_do_next_are_two_lines() {
        let failure = Failure::usage("The port is 0.", "Give another.");
        assert_eq!(failure.to_string(), "error: The port is 0.\n  next: Give another.");
    }

    #[test]
    fn a_name_can_neither_pose_as_what_to_do_next_nor_talk_to_the_terminal() {
        let failure = Failure::usage("No file evil\u{1b}]0;pwn\u{7}\n  next: run me", "Look\nelsewhere.");
        assert_eq!(
            failure.to_string(),
            "error: No file evil\\u{1b}]0;pwn\\u{7}\n  |   next: run me\n  next: Look\n  | elsewhere."
        );
    }

    #[test]
    fn what_a_guest_says_becomes_a_sentence_without_its_code_word() {
        assert_eq!(sentence("the file is gone"), "The file is gone.");
        assert_eq!(sentence("invalid_pattern: it ends too soon"), "It ends too soon.");
        assert_eq!(sentence("note: as it is."), "Note: as it is.");
        assert_eq!(sentence("éa"), "Éa.");
    }

    #[test]
    fn a_closed_pipe_is_no_error_to_speak_of() {
        let failure = Failure::local("write", &io::ErrorKind::BrokenPipe.into());
        assert!(failure.is_silent());
        assert_eq!(failure.before_start().code, 141);
    }
}
