//! Failures, their messages and the exit codes. The codes from 1 to 10 are those of the library's error table.
//!
//! | code | meaning |
//! | --- | --- |
//! | 0 | done |
//! | 1 | `internal`: internal error; for grep and glob: nothing found; for doctor: a problem found |
//! | 2 | `invalid_input`: invalid command line or configuration |
//! | 3 | `not_found`: sandbox, file or process not found |
//! | 4 | `already_exists`: it exists already, or is in use |
//! | 5 | `denied`: denied by RBAC, a policy or a file's mode |
//! | 6 | `quota_exceeded`: a quota or limit is exceeded |
//! | 7 | `start_failed`: the sandbox cannot start |
//! | 8 | `timeout`: timeout |
//! | 9 | `unavailable`: temporarily unavailable |
//! | 10 | `unsupported`: not supported by this version, mode or cluster |
//! | 124 | the command in the sandbox timed out |
//! | 125 | the command in the sandbox was not started |
//! | 128 + n | signal n ended the command in the sandbox, or sandpod itself |
//! | 255 | the fate of the command in the sandbox is unknown |

use std::fmt;
use std::io;
use std::process::ExitCode;

use sandpod::{CallError, Error, ErrorCode, ErrorKind, Escaped};
use serde_json::{Value, json};

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// The command in the sandbox was not started.
pub(crate) const NEVER_STARTED: u8 = 125;
/// The fate of the command in the sandbox is unknown.
pub(crate) const UNKNOWN: u8 = 255;
/// The reader of our output closed the pipe: the exit code of a process that SIGPIPE ended.
const BROKEN_PIPE: u8 = 128 + 13;

/// A failed command: what failed, what to do next, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    kind: ErrorKind,
    message: String,
    next: String,
    /// The failure is part of a JSON value that was printed.
    is_printed: bool,
}

impl Failure {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>, next: impl Into<String>) -> Self {
        Self { code: kind.exit_code(), kind, message: message.into(), next: next.into(), is_printed: false }
    }

    /// An invalid command line or configuration.
    pub(crate) fn usage(message: impl Into<String>, next: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, message, next)
    }

    /// A signal ended this process.
    pub(crate) fn interrupted(signal: i32) -> Self {
        Self::silent(u8::try_from(128 + signal).unwrap_or(UNKNOWN))
    }

    /// We detached from a command that continues, which is a success.
    pub(crate) fn detached() -> Self {
        Self::silent(0)
    }

    /// A failure without a message.
    fn silent(code: u8) -> Self {
        Self { code, ..Self::new(ErrorKind::Internal, "", "") }
    }

    /// A failed operation on a file or stream of this machine; `what` completes "Cannot …".
    pub(crate) fn local(what: &str, cause: &io::Error) -> Self {
        if cause.kind() == io::ErrorKind::BrokenPipe {
            return Self::silent(BROKEN_PIPE);
        }
        let (kind, next) = match cause.kind() {
            io::ErrorKind::NotFound => (ErrorKind::NotFound, "Check the path."),
            io::ErrorKind::PermissionDenied => (ErrorKind::Denied, "Check its permissions."),
            io::ErrorKind::AlreadyExists => {
                (ErrorKind::AlreadyExists, "Choose another name, or remove the existing file.")
            }
            io::ErrorKind::StorageFull => (ErrorKind::QuotaExceeded, "Free space on the disk."),
            _ => (ErrorKind::Internal, "Try again."),
        };
        Self::new(kind, format!("Cannot {what}: {cause}."), next)
    }

    /// Sets the exit code 125: the command in the sandbox was not started.
    #[must_use]
    pub(crate) fn before_start(self) -> Self {
        // A signal and a broken pipe keep their own exit codes.
        if self.message.is_empty() { self } else { Self { code: NEVER_STARTED, ..self } }
    }

    /// Sets the exit code 125, unless the command line or the configuration is invalid.
    #[must_use]
    pub(crate) fn before_start_unless_usage(self) -> Self {
        if self.kind == ErrorKind::InvalidInput { self } else { self.before_start() }
    }

    /// Sets the exit code 255: the command in the sandbox was started and its fate is unknown.
    #[must_use]
    pub(crate) fn after_start(self) -> Self {
        if self.message.is_empty() { self } else { Self { code: UNKNOWN, ..self } }
    }

    /// A failed call that starts a command. If the request was sent, the command may run.
    pub(crate) fn of_start(error: CallError) -> Self {
        let is_unknown = error.is_outcome_unknown();
        let failure = Self::from(error);
        if is_unknown { failure.after_start() } else { failure.before_start() }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }

    /// Reports whether the failure is a timeout.
    pub(crate) fn is_timeout(&self) -> bool {
        self.kind == ErrorKind::Timeout
    }

    /// Reports whether there is no message, as after a signal or a closed pipe.
    pub(crate) fn is_silent(&self) -> bool {
        self.message.is_empty()
    }

    /// The failure as JSON, unless it has no message.
    pub(crate) fn value(&self) -> Option<Value> {
        let value = || json!({ "code": self.kind.as_str(), "message": self.message, "next": self.next });
        (!self.is_silent()).then(value)
    }

    /// Marks the failure as printed in a JSON value on stdout.
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
        write!(f, "error: {}", escape(&self.message))?;
        if self.next.is_empty() { Ok(()) } else { write!(f, "\n  next: {}", escape(&self.next)) }
    }
}

/// Escapes control characters and prefixes further lines with a bar, so that untrusted text cannot imitate our own lines.
pub(crate) fn escape(text: &str) -> String {
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
            CallError::LocalDenied(_) => "Check the permissions of the file.",
            _ => "", // The message has the next step.
        };
        Self::new(error.kind(), sentence(&without_tuple(&error.to_string())), next)
    }
}

/// Formats a message as a sentence: removes a leading error code, capitalises, adds a full stop.
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

/// Writes the allowed prefixes of a denial as a list: the library's message has them as a Python tuple, which agents know.
fn without_tuple(message: &str) -> String {
    let prefixes = message
        .split_once(" is not under any allowed prefix: (")
        .and_then(|(path, prefixes)| Some((path, prefixes.strip_suffix(')')?.trim_end_matches(','))));
    match prefixes {
        Some((path, "")) => format!("{path} is not under an allowed prefix: there is none"),
        Some((path, prefixes)) => format!("{path} is not under an allowed prefix: {prefixes}"),
        None => message.to_owned(),
    }
}

/// The beginnings of a guest's messages about a missing or ended process.
const PROCESS: [&str; 2] = ["there is no process ", "the process "];

/// The next step for an error of the guest.
fn next(kind: ErrorKind, code: ErrorCode, message: &str) -> &'static str {
    match code {
        ErrorCode::IsDirectory => "List its content with `sandpod ls`.",
        ErrorCode::NotADirectory => "Check the parts of the path with `sandpod ls`.",
        ErrorCode::TooLarge => "Read a smaller part, or copy the file with `sandpod cp`.",
        ErrorCode::Policy => {
            "Use a path or command that the policy allows, or change the policy: it is `policy` in the configuration."
        }
        ErrorCode::PermissionDenied if message.contains("Read-only file system") => {
            "Write to the working directory, the home directory or /tmp; the rest of the file system is read-only."
        }
        _ => match kind {
            ErrorKind::NotFound if PROCESS.iter().any(|beginning| message.starts_with(beginning)) => {
                "List the commands with `sandpod ps`."
            }
            ErrorKind::NotFound => "List the directory with `sandpod ls`.",
            ErrorKind::AlreadyExists => "Choose another path, or remove the existing file with `sandpod rm`.",
            ErrorKind::Denied => {
                "Check its mode and owner with `sandpod ls`; commands do not run as your user."
            }
            ErrorKind::QuotaExceeded => {
                "Remove files or end commands in the sandbox, or create one with higher limits."
            }
            ErrorKind::InvalidInput => "See `--help` of the command.",
            ErrorKind::Unsupported => {
                "The sandbox has an older guest: create a new one with `sandpod create`."
            }
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
    fn a_start_without_an_answer_has_an_unknown_outcome() {
        let (what, reason) = ("starting a command".to_owned(), "the guest did not answer".to_owned());
        let limit = std::time::Duration::from_secs(10);
        let unknown = Failure::of_start(CallError::DeadlineExceeded { what, limit, reason: reason.clone() });
        assert_eq!(unknown.exit_code(), ExitCode::from(UNKNOWN));
        assert!(unknown.is_timeout());
        let undone = Failure::of_start(CallError::Unreachable { reason, waited: limit });
        assert_eq!(undone.exit_code(), ExitCode::from(NEVER_STARTED));
    }

    #[test]
    fn a_path_that_escapes_its_root_is_a_usage_error() {
        let failure = Failure::from(CallError::PathEscapes("Path '..' escapes root_dir '/app'".to_owned()));
        assert_eq!(failure.exit_code(), ExitCode::from(2));
        let lines =
            "error: Path '..' escapes root_dir '/app'.\n  next: Name a path below root_dir, without '..'.";
        assert_eq!(failure.to_string(), lines);
    }

    #[test]
    fn allowed_prefixes_are_a_list_and_no_python_tuple() {
        let message =
            |prefixes: &str| without_tuple(&format!("Path '/x' is not under any allowed prefix: {prefixes}"));
        assert_eq!(message("('/tmp/',)"), "Path '/x' is not under an allowed prefix: '/tmp/'");
        assert_eq!(message("('/a/', '/b/')"), "Path '/x' is not under an allowed prefix: '/a/', '/b/'");
        assert_eq!(message("()"), "Path '/x' is not under an allowed prefix: there is none");
        assert_eq!(without_tuple("the file is gone"), "the file is gone");
    }

    #[test]
    fn the_message_and_the_next_step_are_two_lines() {
        let failure = Failure::usage("The port is 0.", "Give another.");
        assert_eq!(failure.to_string(), "error: The port is 0.\n  next: Give another.");
    }

    #[test]
    fn untrusted_text_cannot_imitate_the_next_step_or_send_escapes() {
        let failure = Failure::usage("No file evil\u{1b}]0;pwn\u{7}\n  next: run me", "Look\nelsewhere.");
        assert_eq!(
            failure.to_string(),
            "error: No file evil\\u{1b}]0;pwn\\u{7}\n  |   next: run me\n  next: Look\n  | elsewhere."
        );
    }

    #[test]
    fn a_message_becomes_a_sentence_without_its_error_code() {
        assert_eq!(sentence("the file is gone"), "The file is gone.");
        assert_eq!(sentence("invalid_pattern: it ends too soon"), "It ends too soon.");
        assert_eq!(sentence("note: as it is."), "Note: as it is.");
        assert_eq!(sentence("éa"), "Éa.");
    }

    #[test]
    fn a_closed_pipe_is_a_silent_failure() {
        let failure = Failure::local("write", &io::ErrorKind::BrokenPipe.into());
        assert!(failure.is_silent());
        assert_eq!(failure.before_start().code, 141);
    }
}
