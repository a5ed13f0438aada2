//! How the command ends: one table from what went wrong to an exit code, and one form in which it is said.
//!
//! | code | meaning |
//! | --- | --- |
//! | 0 | done |
//! | 1 | something that should not happen; for grep, glob and doctor: nothing found, or something wrong found |
//! | 2 | the command or an option is wrong |
//! | 3 | there is no such sandbox, file or process |
//! | 4 | it is there already, or in use |
//! | 5 | not allowed: a right, a policy, a file's mode |
//! | 6 | a quota or limit is reached |
//! | 7 | the sandbox can't start |
//! | 8 | it took longer than it may |
//! | 9 | not reachable now; later it may work |
//! | 10 | this version, mode or cluster can't do it |
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
        Self { code: code(kind), kind, message: message.into(), next: next.into(), is_printed: false }
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
            CallError::Failure(failure) => next(failure.code(), failure.message()),
            CallError::PathEscapes(_) => "Name a path below root_dir, without '..'.",
            _ => "", // They say it themselves.
        };
        Self::new(kind(&error), sentence(&error.to_string()), next)
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
fn next(code: ErrorCode, message: &str) -> &'static str {
    match code {
        ErrorCode::IsDirectory => "See what is in it with `sandpod ls`.",
        ErrorCode::NotADirectory => "See with `sandpod ls` which part of the path is no directory.",
        ErrorCode::TooLarge => "Take less at once, or copy it with `sandpod cp`.",
        ErrorCode::PermissionDenied if message.contains("Read-only file system") => {
            "Change what is in the directory where commands start, in their home or in /tmp: most else stays as it is."
        }
        _ => match kind_of_code(code) {
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

/// The table above.
fn code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::InvalidInput => 2,
        ErrorKind::NotFound => 3,
        ErrorKind::AlreadyExists => 4,
        ErrorKind::Denied => 5,
        ErrorKind::QuotaExceeded => 6,
        ErrorKind::StartFailed => 7,
        ErrorKind::Timeout => 8,
        ErrorKind::Unavailable => 9,
        ErrorKind::Unsupported => 10,
        _ => 1,
    }
}

/// What a failed call is in the terms of the table.
fn kind(error: &CallError) -> ErrorKind {
    match error {
        CallError::Failure(failure) => kind_of_code(failure.code()),
        CallError::Gone { .. } => ErrorKind::NotFound,
        CallError::Denied(_) => ErrorKind::Denied,
        CallError::Stalled { .. } | CallError::DeadlineExceeded { .. } => ErrorKind::Timeout,
        CallError::Unreachable { .. } | CallError::Lost { .. } => ErrorKind::Unavailable,
        CallError::InvalidArgument(_) | CallError::PathEscapes(_) => ErrorKind::InvalidInput,
        _ => ErrorKind::Internal,
    }
}

fn kind_of_code(code: ErrorCode) -> ErrorKind {
    match code {
        ErrorCode::NotFound => ErrorKind::NotFound,
        ErrorCode::Exists => ErrorKind::AlreadyExists,
        ErrorCode::PermissionDenied
        | ErrorCode::Policy
        | ErrorCode::NotYours
        | ErrorCode::Unauthenticated => ErrorKind::Denied,
        ErrorCode::NoSpace | ErrorCode::Limit => ErrorKind::QuotaExceeded,
        ErrorCode::Unsupported => ErrorKind::Unsupported,
        ErrorCode::InvalidArgument
        | ErrorCode::IsDirectory
        | ErrorCode::NotADirectory
        | ErrorCode::NotAFile
        | ErrorCode::NotText
        | ErrorCode::NoMatch
        | ErrorCode::ManyMatches
        | ErrorCode::TooLarge => ErrorKind::InvalidInput,
        ErrorCode::Changed => ErrorKind::Unavailable,
        _ => ErrorKind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_failure_has_the_exit_code_of_the_table() {
        let table = [
            (ErrorKind::Internal, 1),
            (ErrorKind::InvalidInput, 2),
            (ErrorKind::NotFound, 3),
            (ErrorKind::AlreadyExists, 4),
            (ErrorKind::Denied, 5),
            (ErrorKind::QuotaExceeded, 6),
            (ErrorKind::StartFailed, 7),
            (ErrorKind::Timeout, 8),
            (ErrorKind::Unavailable, 9),
            (ErrorKind::Unsupported, 10),
        ];
        for (kind, expected) in table {
            assert_eq!(code(kind), expected, "{kind:?}");
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
