//! Failures of calls.

use prost::Message as _;
use tonic::Status;

use crate::errors::grpc_code;
use crate::v1::{ErrorCode, ErrorDetail};

/// The failure of a call: a code for programs and a message for people. It is sent as a gRPC status.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Failure {
    code: ErrorCode,
    message: String,
    path: Option<String>,
}

impl Failure {
    /// Creates a failure with a message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), path: None }
    }

    /// Adds the path of the failed operation.
    #[must_use]
    pub fn at(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// The code.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    /// The message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The path of the failed operation.
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

/// Converts a status from a guest. Without valid details the code is `Internal`.
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
