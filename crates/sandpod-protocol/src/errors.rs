//! The error table: every error code with its kind, and every kind with its names and numbers on each surface.
//!
//! A failed call has a [`CallRow`]: that of the guest's [`ErrorCode`], or one of the constants below for failures on the
//! way to the guest. A failed call of a provider has an [`ErrorKind`] and sometimes an [`ErrorCase`]. The audit, the
//! command's exit codes, HTTP answers and the classes of both bindings are read from these rows. To add a wire code,
//! change `session.proto`, the generated file and this table.

use tonic::Code;

use crate::v1::ErrorCode;

/// Whether a failed call may be repeated.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Retry {
    /// The same call fails again, until something else changes.
    Never,
    /// The call had no effect, and may succeed later.
    Later,
    /// The call may have had its effect: check that before repeating it.
    CheckFirst,
}

/// The row of a failed call in a sandbox.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CallRow {
    /// The name for programs, such as `is_directory`.
    pub code: &'static str,
    /// The kind of failure.
    pub kind: ErrorKind,
    /// Whether the call may be repeated.
    pub retry: Retry,
    /// The class of the JavaScript error. In Python every one is a `SandboxError`.
    pub javascript: &'static str,
}

struct KindRow {
    name: &'static str,
    exit_code: u8,
    http_status: u16,
    retry: Retry,
    python: &'static str,
    javascript: &'static str,
}

macro_rules! kinds {
    ($( $(#[doc = $doc:literal])+ $kind:ident: $name:literal, $exit:literal, $http:literal, $retry:ident, $python:literal,
        $javascript:literal; )+) => {
        /// The kind of a failure, for programs.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $( $(#[doc = $doc])+ $kind, )+
        }

        impl ErrorKind {
            /// All kinds.
            pub const ALL: &[Self] = &[$( Self::$kind ),+];

            const fn row(self) -> KindRow {
                match self {
                    $( Self::$kind => KindRow {
                        name: $name,
                        exit_code: $exit,
                        http_status: $http,
                        retry: Retry::$retry,
                        python: $python,
                        javascript: $javascript,
                    }, )+
                }
            }
        }
    };
}

// kind: name, exit code, HTTP status, retry, Python class, JavaScript class;
kinds! {
    /// The sandbox does not exist, or its Pod is gone.
    NotFound: "not_found", 3, 404, Never, "SandboxNotFoundError", "SandboxNotFoundError";
    /// The name is taken by an object that is not sandpod's.
    AlreadyExists: "already_exists", 4, 409, Never, "SandboxError", "SandboxError";
    /// A time limit has passed.
    Timeout: "timeout", 8, 504, CheckFirst, "SandboxError", "SandboxError";
    /// The caller's mistake: an id, a field of the configuration.
    InvalidInput: "invalid_input", 2, 400, Never, "ValueError", "TypeError";
    /// A missing right, an admission policy, or a policy of the sandbox.
    Denied: "denied", 5, 403, Never, "SandboxError", "SandboxError";
    /// A quota or a limit is reached.
    QuotaExceeded: "quota_exceeded", 6, 429, Later, "SandboxError", "SandboxError";
    /// The sandbox's Pod cannot start: its image, its command, its nodes.
    StartFailed: "start_failed", 7, 500, Never, "SandboxError", "SandboxError";
    /// The cluster or the guest cannot be reached, or is busy.
    Unavailable: "unavailable", 9, 503, Later, "SandboxError", "SandboxRouterError";
    /// This version, mode or cluster does not support the call.
    Unsupported: "unsupported", 10, 501, Never, "SandboxError", "SandboxError";
    /// A bug, or an answer that cannot be understood.
    Internal: "internal", 1, 500, Never, "SandboxError", "SandboxError";
}

impl ErrorKind {
    /// Its name: `not_found`, `already_exists` and so on.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.row().name
    }

    /// The exit code of the `sandpod` command.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        self.row().exit_code
    }

    /// The status of an HTTP answer.
    #[must_use]
    pub const fn http_status(self) -> u16 {
        self.row().http_status
    }

    /// Whether a call that failed so may be repeated.
    #[must_use]
    pub const fn retry(self) -> Retry {
        self.row().retry
    }

    /// The class of the Python exception that a provider raises.
    #[must_use]
    pub const fn python_class(self) -> &'static str {
        self.row().python
    }

    /// The class of the JavaScript error that a provider throws; an [`ErrorCase`] has its own.
    #[must_use]
    pub const fn javascript_class(self) -> &'static str {
        self.row().javascript
    }
}

macro_rules! cases {
    ($( $(#[doc = $doc:literal])+ $case:ident: $code:expr, $kind:ident, $javascript:literal; )+) => {
        /// A case of an [`ErrorKind`] that has a code or a JavaScript class of its own.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        #[non_exhaustive]
        pub enum ErrorCase {
            $( $(#[doc = $doc])+ $case, )+
        }

        impl ErrorCase {
            /// All cases.
            pub const ALL: &[Self] = &[$( Self::$case ),+];

            /// The kind that it is a case of.
            #[must_use]
            pub const fn kind(self) -> ErrorKind {
                match self { $( Self::$case => ErrorKind::$kind, )+ }
            }

            /// The name for programs.
            #[must_use]
            pub const fn code(self) -> &'static str {
                match self { $( Self::$case => $code, )+ }
            }

            /// The class of the JavaScript error.
            #[must_use]
            pub const fn javascript_class(self) -> &'static str {
                match self { $( Self::$case => $javascript, )+ }
            }
        }
    };
}

// case: code, kind, JavaScript class;
cases! {
    /// The `SandboxTemplate` or `SandboxWarmPool` does not exist.
    MissingTemplate: "start_failed", StartFailed, "TemplateNotFoundError";
    /// The sandbox was not ready within `startup_timeout_seconds`.
    StartupTimeout: "timeout", Timeout, "SandboxStartupTimeoutError";
    /// The namespace that a sandbox needs exists and is not sandpod's.
    NamespaceConflict: "already_exists", AlreadyExists, "NamespaceConflictError";
    /// The thread manager is closed.
    Closed: "closed", Unsupported, "SandboxError";
    /// Sandboxes are left after their deletion, which can be repeated.
    NotDeleted: "not_deleted", Unavailable, "SandboxError";
}

macro_rules! wire_codes {
    ($( $code:ident: $name:literal, $kind:ident, $retry:ident, $grpc:ident; )+) => {
        /// The row of a code that a guest has sent.
        #[must_use]
        pub const fn of_wire(code: ErrorCode) -> CallRow {
            let (code, kind, retry) = match code {
                $( ErrorCode::$code => ($name, ErrorKind::$kind, Retry::$retry), )+
            };
            CallRow { code, kind, retry, javascript: "SandboxExecError" }
        }

        /// The nearest code that every gRPC client has.
        pub(crate) const fn grpc_code(code: ErrorCode) -> Code {
            match code { $( ErrorCode::$code => Code::$grpc, )+ }
        }

        /// All codes of the wire.
        const WIRE_CODES: &[ErrorCode] = &[$( ErrorCode::$code ),+];
    };
}

// wire code: name, kind, retry, gRPC code;
wire_codes! {
    Unspecified: "internal", Internal, Never, Internal;
    InvalidArgument: "invalid_argument", InvalidInput, Never, InvalidArgument;
    NotFound: "not_found", NotFound, Never, NotFound;
    PermissionDenied: "permission_denied", Denied, Never, PermissionDenied;
    IsDirectory: "is_directory", InvalidInput, Never, FailedPrecondition;
    NotADirectory: "not_a_directory", InvalidInput, Never, FailedPrecondition;
    NotAFile: "not_a_file", InvalidInput, Never, FailedPrecondition;
    NotText: "not_text", InvalidInput, Never, FailedPrecondition;
    NoMatch: "no_match", InvalidInput, Never, FailedPrecondition;
    ManyMatches: "many_matches", InvalidInput, Never, FailedPrecondition;
    Changed: "changed", Unavailable, Later, Aborted;
    TooLarge: "too_large", InvalidInput, Never, OutOfRange;
    NoSpace: "no_space", QuotaExceeded, Never, ResourceExhausted;
    Limit: "limit", QuotaExceeded, Later, ResourceExhausted;
    OutcomeUnknown: "outcome_unknown", Internal, CheckFirst, Unknown;
    NotYours: "not_yours", Denied, Never, PermissionDenied;
    Unsupported: "unsupported", Unsupported, Never, Unimplemented;
    Corrupt: "corrupt", Internal, Later, DataLoss;
    Internal: "internal", Internal, Never, Internal;
    Policy: "policy", Denied, Never, PermissionDenied;
    Exists: "exists", AlreadyExists, Never, AlreadyExists;
    Unauthenticated: "unauthenticated", Denied, Never, Unauthenticated;
}

macro_rules! connection_rows {
    ($( $(#[doc = $doc:literal])+ $row:ident: $code:literal, $kind:ident, $retry:ident, $javascript:literal; )+) => {
        $( $(#[doc = $doc])+
        pub const $row: CallRow =
            CallRow { code: $code, kind: ErrorKind::$kind, retry: Retry::$retry, javascript: $javascript }; )+

        /// All rows of failures on the way to the guest.
        const CONNECTION_ROWS: &[CallRow] = &[$( $row ),+];
    };
}

// row: code, kind, retry, JavaScript class;
connection_rows! {
    /// There was no stream to send the call on.
    UNREACHABLE: "unreachable", Unavailable, Later, "SandboxRouterError";
    /// Opening a stream is refused.
    DENIED: "denied", Denied, Never, "SandboxExecError";
    /// The stream was lost during the call.
    LOST: "lost", Unavailable, CheckFirst, "SandboxRouterError";
    /// The stream is open, and the guest does not answer.
    STALLED: "stalled", Timeout, CheckFirst, "SandboxExecError";
    /// The command's timeout and a grace period have passed without an answer.
    DEADLINE_EXCEEDED: "deadline_exceeded", Timeout, CheckFirst, "SandboxExecError";
    /// The guest has no record of the call.
    OUTCOME_UNKNOWN: "outcome_unknown", Internal, CheckFirst, "SandboxExecError";
    /// The sandbox lost its files before the call, which had no effect.
    REPLACED: "replaced", Internal, Later, "SandboxExecError";
    /// The sandbox is gone.
    GONE: "gone", NotFound, CheckFirst, "SandboxNotFoundError";
    /// The guest broke the protocol.
    PROTOCOL: "protocol", Internal, CheckFirst, "SandboxExecError";
    /// An argument is wrong.
    INVALID_ARGUMENT: "invalid_argument", InvalidInput, Never, "SandboxExecError";
    /// A path leads out of the root directory.
    PATH_ESCAPES: "path_escapes", InvalidInput, Never, "SandboxExecError";
    /// The caller's end of a transfer failed.
    LOCAL: "internal", Internal, Never, "SandboxExecError";
    /// The caller's user may not read or write a file of a transfer.
    LOCAL_DENIED: "permission_denied", Denied, Never, "SandboxExecError";
}

/// The row of the code that a program has, if there is one.
#[must_use]
pub fn of_code(code: &str) -> Option<CallRow> {
    let rows = WIRE_CODES.iter().map(|code| of_wire(*code)).chain(CONNECTION_ROWS.iter().copied());
    rows.into_iter().find(|row| row.code == code)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn the_name_of_a_wire_code_is_that_of_the_protocol() {
        for &code in WIRE_CODES.iter().filter(|code| **code != ErrorCode::Unspecified) {
            let of_protocol = code.as_str_name().trim_start_matches("ERROR_CODE_").to_lowercase();
            assert_eq!(of_wire(code).code, of_protocol);
        }
    }

    #[test]
    fn rows_of_one_code_have_the_same_kind_and_retry_verdict() {
        let mut found = BTreeMap::new();
        for row in WIRE_CODES.iter().map(|code| of_wire(*code)).chain(CONNECTION_ROWS.iter().copied()) {
            let (kind, retry) = *found.entry(row.code).or_insert((row.kind, row.retry));
            assert_eq!((row.kind, row.retry), (kind, retry), "{}", row.code);
        }
    }

    #[test]
    fn the_document_has_a_row_for_each_code_with_its_retry_verdict() {
        const PAGE: &str = include_str!("../../../docs/troubleshooting.md");
        let of_calls = WIRE_CODES.iter().map(|code| of_wire(*code)).chain(CONNECTION_ROWS.iter().copied());
        let calls = of_calls.map(|row| (row.code, row.retry));
        let kinds = ErrorKind::ALL.iter().map(|kind| (kind.as_str(), kind.retry()));
        let cases = ErrorCase::ALL.iter().map(|case| (case.code(), case.kind().retry()));
        let expected: BTreeSet<String> = calls
            .chain(kinds)
            .chain(cases)
            .map(|(code, retry)| {
                let repeat = match retry {
                    Retry::Never => "never",
                    Retry::Later => "later",
                    Retry::CheckFirst => "check first",
                };
                format!("| `{code}` | {repeat} ")
            })
            .collect();
        let (_, table) = PAGE.split_once("## Error codes").unwrap();
        let (table, _) = table.split_once("## Checks").unwrap();
        let rows = table.lines().filter(|line| line.starts_with("| `"));
        let listed: BTreeSet<String> =
            rows.map(|line| line.split('|').take(3).collect::<Vec<_>>().join("|")).collect();
        assert_eq!(listed, expected);
    }

    #[test]
    fn every_kind_has_a_name_and_an_exit_code_of_its_own() {
        let names: BTreeSet<_> = ErrorKind::ALL.iter().map(|kind| kind.as_str()).collect();
        let exit_codes: BTreeSet<_> = ErrorKind::ALL.iter().map(|kind| kind.exit_code()).collect();
        assert_eq!((names.len(), exit_codes.len()), (ErrorKind::ALL.len(), ErrorKind::ALL.len()));
        assert!(
            exit_codes.iter().all(|code| (1..=10).contains(code)),
            "the other codes have meanings of their own"
        );
    }

    #[test]
    fn every_class_is_one_that_the_bindings_have() {
        let python = ["SandboxError", "SandboxNotFoundError", "ValueError"];
        let javascript = [
            "NamespaceConflictError",
            "SandboxError",
            "SandboxExecError",
            "SandboxNotFoundError",
            "SandboxRouterError",
            "SandboxStartupTimeoutError",
            "TemplateNotFoundError",
            "TypeError",
        ];
        let of_calls = CONNECTION_ROWS.iter().map(|row| row.javascript);
        let of_cases = ErrorCase::ALL.iter().map(|case| case.javascript_class());
        for class in ErrorKind::ALL.iter().map(|kind| kind.javascript_class()).chain(of_calls).chain(of_cases)
        {
            assert!(javascript.contains(&class), "{class}");
        }
        assert!(ErrorKind::ALL.iter().all(|kind| python.contains(&kind.python_class())));
    }
}
