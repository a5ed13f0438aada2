//! Requests that the router answers itself.

use std::fmt;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;
use serde::Serialize;

/// The reason why a request is not forwarded, for programs.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// A header of the request contract is missing or malformed.
    InvalidRequest,
    /// No credential, or one that is not valid.
    Unauthenticated,
    /// The caller may not use this sandbox.
    Forbidden,
    /// The caller or the sandbox has too many requests in flight.
    TooManyRequests,
    /// The body is larger than the limit.
    BodyTooLarge,
    /// There is no such sandbox.
    SandboxNotFound,
    /// The sandbox has no Pod until it is resumed.
    Suspended,
    /// The Pod of the sandbox is not ready yet.
    Starting,
    /// The Pod did not accept the connection.
    ConnectFailed,
    /// The Pod closed the connection before it answered.
    ConnectionLost,
    /// The sandbox did not answer within the timeout of the request.
    Timeout,
    /// The router cannot look up sandboxes or check credentials at the moment.
    ApiServerUnavailable,
}

impl fmt::Display for Reason {
    /// Writes the reason as programs read it in an answer.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl Reason {
    /// Whether the sandbox takes requests as soon as its Pod is ready.
    pub(crate) fn is_temporary(self) -> bool {
        matches!(self, Self::Suspended | Self::Starting)
    }

    /// The reason as a label of metrics, in the original router's words where it has one.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::ConnectFailed => "dial",
            Self::ConnectionLost => "eof",
            Self::Timeout => "timeout",
            Self::SandboxNotFound => "not-found",
            Self::Suspended => "suspended",
            Self::Starting => "starting",
            Self::ApiServerUnavailable => "api-server",
            _ => "other",
        }
    }
}

/// A response that the router makes itself, with the original router's `detail` and a `reason` for programs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Refusal {
    /// The HTTP status.
    pub status: StatusCode,
    /// The sentence for people.
    pub detail: String,
    /// The reason for programs.
    pub reason: Reason,
    retry_after: Option<u32>,
}

#[derive(Serialize)]
struct Body<'a> {
    detail: &'a str,
    reason: Reason,
}

impl Refusal {
    fn new(status: StatusCode, reason: Reason, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), reason, retry_after: None }
    }

    /// A request that violates the contract.
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, Reason::InvalidRequest, detail)
    }

    /// A missing or invalid credential.
    #[must_use]
    pub fn unauthenticated() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, Reason::Unauthenticated, "unauthenticated")
    }

    /// A valid credential without the right to this sandbox.
    #[must_use]
    pub fn forbidden() -> Self {
        Self::new(StatusCode::FORBIDDEN, Reason::Forbidden, "forbidden")
    }

    /// More requests in flight than permitted.
    #[must_use]
    pub fn too_many(what: &str) -> Self {
        let detail = format!("Too many requests in flight for this {what}. Retry later.");
        Self {
            retry_after: Some(1),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, Reason::TooManyRequests, detail)
        }
    }

    /// A body over the limit.
    #[must_use]
    pub fn too_large(limit: u64) -> Self {
        let detail = format!("The request body is larger than {limit} bytes.");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, Reason::BodyTooLarge, detail)
    }

    /// A suspended sandbox.
    #[must_use]
    pub fn suspended(id: &str) -> Self {
        let refusal = Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            Reason::Suspended,
            format!("Sandbox {id} is suspended. Resume it."),
        );
        Self { retry_after: Some(5), ..refusal }
    }

    /// A sandbox that is not ready yet.
    #[must_use]
    pub fn starting(id: &str) -> Self {
        let refusal = Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            Reason::Starting,
            format!("Sandbox {id} is starting. Retry later."),
        );
        Self { retry_after: Some(2), ..refusal }
    }

    /// A sandbox that cannot be reached. The status and the detail are the original router's.
    #[must_use]
    pub fn backend(id: &str, reason: Reason) -> Self {
        let detail = format!("Could not connect to the backend sandbox: {id}");
        Self::new(StatusCode::BAD_GATEWAY, reason, detail)
    }

    /// No answer in time.
    #[must_use]
    pub fn timeout(id: &str, seconds: f64) -> Self {
        let detail = format!("Sandbox {id} did not answer within {seconds} s.");
        Self::new(StatusCode::GATEWAY_TIMEOUT, Reason::Timeout, detail)
    }

    /// The API server does not answer, and the request needs it.
    #[must_use]
    pub fn unavailable(detail: impl Into<String>) -> Self {
        let refusal = Self::new(StatusCode::SERVICE_UNAVAILABLE, Reason::ApiServerUnavailable, detail);
        Self { retry_after: Some(2), ..refusal }
    }

    /// The response for the client.
    #[must_use]
    pub fn response(&self) -> Response<Full<Bytes>> {
        let body = Body { detail: &self.detail, reason: self.reason };
        let body = serde_json::to_vec(&body).unwrap_or_default(); // strings always serialize
        let mut response = Response::new(Full::new(body.into()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_written_as_in_the_answer() {
        for (reason, text) in [
            (Reason::InvalidRequest, "invalid-request"),
            (Reason::TooManyRequests, "too-many-requests"),
            (Reason::ApiServerUnavailable, "api-server-unavailable"),
        ] {
            assert_eq!(reason.to_string(), text);
        }
    }
}
