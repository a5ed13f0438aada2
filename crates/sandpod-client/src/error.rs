//! Errors of calls, and notices that accompany results.

use std::time::Duration;

use sandpod_protocol::Failure;
use sandpod_protocol::errors::{self, CallRow, ErrorKind, Retry};

use crate::escaped::Escaped;

/// Why a call has no result.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The guest returned an error.
    #[error("{}", Escaped(.0.message()))]
    Failure(Failure),
    /// No stream could be opened: nothing was done.
    #[error(
        "the sandbox could not be reached for {waited:.0?}, so nothing was done: {}. Try again later, or check why \
         the sandbox is not running",
        Escaped(.reason)
    )]
    Unreachable {
        /// Why the last attempt failed.
        reason: String,
        /// How long the call waited.
        waited: Duration,
    },
    /// The stream was refused: nothing was done.
    #[error("access to the sandbox is refused: {}. Check the permissions of your account", Escaped(.0))]
    Denied(String),
    /// The stream broke during the call, and no other stream could be opened in time.
    #[error(
        "the stream to the sandbox was lost during {} and could not be opened again: {}. If the call changes \
         something, check whether it was done before you repeat it",
        Escaped(.what), Escaped(.reason)
    )]
    Lost {
        /// The call.
        what: String,
        /// Why the last attempt failed.
        reason: String,
    },
    /// The stream appears to be open, but no answer arrives.
    #[error(
        "the guest has not answered {} for {limit:.0?}. If the call changes something, check whether it was done before you repeat it",
        Escaped(.what)
    )]
    Stalled {
        /// The call.
        what: String,
        /// How long the call waited for the answer.
        limit: Duration,
    },
    /// No answer arrived within the command's timeout and a grace period. Whether the command ran, and how it ended, is
    /// unknown.
    #[error(
        "the outcome of {} is unknown: no answer came within {limit:.0?}, its timeout and a grace period: {}. It \
         may still finish, and is not repeated; check whether it was done before you repeat it",
        Escaped(.what), Escaped(.reason)
    )]
    DeadlineExceeded {
        /// The call.
        what: String,
        /// How long the call waited for the answer.
        limit: Duration,
        /// Why there is no answer, if known.
        reason: String,
    },
    /// The guest that could answer no longer exists, so the outcome of the call is unknown.
    #[error(
        "the outcome of {} is unknown: the guest has restarted, or has no record of it any more. It was not \
         repeated; check whether it was done before you repeat it",
        Escaped(.what)
    )]
    OutcomeUnknown {
        /// The call.
        what: String,
    },
    /// The sandbox has lost its files since its last use. Nothing was done, so that the caller learns about the loss first.
    #[error("{}. This call did nothing: repeat it if it is still needed", Escaped(&.0.to_string()))]
    Replaced(Notice),
    /// The sandbox is gone for good.
    #[error("the sandbox is gone: {}. Create a new one", Escaped(.reason))]
    Gone {
        /// The reason.
        reason: String,
    },
    /// The guest violated the protocol.
    #[error(
        "the guest violated the protocol: {}. Use a client and a guest of the same version; if they are, do not trust \
         this sandbox",
        Escaped(.0)
    )]
    Protocol(String),
    /// The caller passed an invalid argument.
    #[error("{}", Escaped(.0))]
    InvalidArgument(String),
    /// A path leaves the directory that the caller sees as `/`, or has a `..` where none is allowed. Nothing was sent.
    #[error("{}", Escaped(.0))]
    PathEscapes(String),
    /// Reading or writing on the caller's machine failed.
    #[error("{}", Escaped(.0))]
    Local(String),
    /// A file on the caller's machine may not be read or written.
    #[error("{}", Escaped(.0))]
    LocalDenied(String),
}

impl Error {
    /// The row of the error table: the code for programs, its kind, and whether the call may be repeated.
    #[must_use]
    pub fn row(&self) -> CallRow {
        match self {
            Self::Failure(failure) => errors::of_wire(failure.code()),
            Self::Unreachable { .. } => errors::UNREACHABLE,
            Self::Denied(_) => errors::DENIED,
            Self::Lost { .. } => errors::LOST,
            Self::Stalled { .. } => errors::STALLED,
            Self::DeadlineExceeded { .. } => errors::DEADLINE_EXCEEDED,
            Self::OutcomeUnknown { .. } => errors::OUTCOME_UNKNOWN,
            Self::Replaced(_) => errors::REPLACED,
            Self::Gone { .. } => errors::GONE,
            Self::Protocol(_) => errors::PROTOCOL,
            Self::InvalidArgument(_) => errors::INVALID_ARGUMENT,
            Self::PathEscapes(_) => errors::PATH_ESCAPES,
            Self::Local(_) => errors::LOCAL,
            Self::LocalDenied(_) => errors::LOCAL_DENIED,
        }
    }

    /// Creates the error for a failed operation on a file of the caller's machine.
    pub(crate) fn of_local_file(message: String, cause: &std::io::Error) -> Self {
        match cause.kind() {
            std::io::ErrorKind::PermissionDenied => Self::LocalDenied(message),
            _ => Self::Local(message),
        }
    }

    /// The name for programs, such as `is_directory` or `unreachable`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.row().code
    }

    /// The kind of failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.row().kind
    }

    /// Returns whether the call may have had its effect although it has no result.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        self.row().retry == Retry::CheckFirst
    }
}

/// An event between two calls.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum Notice {
    /// The guest was restarted.
    GuestRestarted,
    /// The sandbox was replaced: the files and processes of the earlier one are gone.
    Replaced {
        /// The directories on volumes that were kept.
        kept: Vec<String>,
    },
    /// No sandbox with the requested id was found, so this one is new.
    NotFound {
        /// The requested id.
        id: String,
    },
}

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::GuestRestarted => f.write_str(
                "the sandbox restarted: files are still there, running processes are gone. Start again what you need",
            ),
            Self::Replaced { kept } if kept.is_empty() => f.write_str(
                "the sandbox was lost and has been replaced: its files and processes are gone. Make again what you need",
            ),
            Self::Replaced { kept } => write!(
                f,
                "the sandbox was lost and has been replaced: its processes are gone, and so are its files outside of {}. \
                 Make again what you need",
                kept.join(", ")
            ),
            Self::NotFound { id } => write!(
                f,
                "no sandbox '{id}' was found, so this is a new one: files and processes of an earlier one are not in \
                 it. Make again what you need"
            ),
        }
    }
}
