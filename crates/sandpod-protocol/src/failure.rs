//! Why a call failed.

use prost::Message as _;
use tonic::Status;

use crate::errors::grpc_code;
use crate::v1::{ErrorCode, ErrorDetail};

/// A call's failure: a code for programs and a sentence for people. It travels as a gRPC status.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Failure {
    code: ErrorCode,
    message: String,
    path: Option<String>,
}

impl Failure {
    /// A failure with a sentence that says what happened.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), path: None }
    }

    /// Adds the path that it is about.
    #[must_use]
    pub fn at(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// What kind of failure it is.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    /// What happened.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The path that it is about, if there is one.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind;
        let code = match error.kind() {
            ErrorKind::NotFound => ErrorCode::NotFound,
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => ErrorCode::PermissionDenied,
            ErrorKind::IsADirectory => ErrorCode::IsDirectory,
            ErrorKind::NotADirectory => ErrorCode::NotADirectory,
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => ErrorCode::NoSpace,
            ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty => ErrorCode::Exists,
            ErrorKind::FileTooLarge => ErrorCode::TooLarge,
            ErrorKind::InvalidInput | ErrorKind::InvalidFilename => ErrorCode::InvalidArgument,
            _ => ErrorCode::Internal,
        };
        Self::new(code, error.to_string())
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        let detail = ErrorDetail { code: failure.code.into(), path: failure.path.unwrap_or_default() };
        Self::with_details(grpc_code(failure.code), failure.message, detail.encode_to_vec().into())
    }
}

/// Reads what a guest sent. One that sent no detail of ours, or nonsense, failed internally.
impl From<&Status> for Failure {
    fn from(status: &Status) -> Self {
        let detail = ErrorDetail::decode(status.details()).unwrap_or_default();
        let code = match detail.code() {
            ErrorCode::Unspecified => ErrorCode::Internal,
            code => code,
        };
        let path = Some(detail.path).filter(|path| !path.is_empty());
        Self { code, message: status.message().to_owned(), path }
    }
}
