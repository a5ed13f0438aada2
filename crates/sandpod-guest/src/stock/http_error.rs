//! Errors of HTTP requests.

use http::StatusCode;
use sandpod_protocol::Failure;
use sandpod_protocol::v1::ErrorCode;
use tonic::Status;

/// An HTTP status and a message.
#[derive(Debug)]
pub(crate) struct HttpError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

impl HttpError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// Returns whether the path does not exist.
    pub(super) fn is_missing(&self) -> bool {
        self.status == StatusCode::NOT_FOUND
    }
}

impl From<Failure> for HttpError {
    fn from(failure: Failure) -> Self {
        let status = match failure.code() {
            ErrorCode::NotFound | ErrorCode::NotADirectory => StatusCode::NOT_FOUND,
            ErrorCode::PermissionDenied | ErrorCode::Policy | ErrorCode::NotYours => StatusCode::FORBIDDEN,
            ErrorCode::InvalidArgument | ErrorCode::IsDirectory | ErrorCode::NotAFile => {
                StatusCode::BAD_REQUEST
            }
            ErrorCode::Exists | ErrorCode::Changed => StatusCode::CONFLICT,
            ErrorCode::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            ErrorCode::Limit => StatusCode::SERVICE_UNAVAILABLE,
            ErrorCode::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
            ErrorCode::Unsupported => StatusCode::NOT_IMPLEMENTED,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, failure.message())
    }
}

impl From<Status> for HttpError {
    fn from(status: Status) -> Self {
        Failure::from(&status).into()
    }
}
