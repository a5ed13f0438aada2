//! Reads the content of a request, with limits for its size and its duration.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use tokio::time::Instant;

use super::http_error::HttpError;

/// Maximum size of a file.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 30;
/// Time that a sender may fall behind the minimum rate.
const GRACE: Duration = Duration::from_secs(30);
const SLOWEST_BYTES_PER_SECOND: u64 = 16 << 10;

/// A source of bytes.
pub(super) trait Content: Send {
    /// Returns the next bytes, or `None` at the end.
    fn next(&mut self) -> impl Future<Output = Result<Option<Bytes>, HttpError>> + Send;
}

/// A request's body.
pub(super) struct LimitedBody {
    body: Incoming,
    most: u64,
    received: u64,
    began: Instant,
}

impl LimitedBody {
    /// Limits a body to `most` bytes. Refuses one whose declared size is larger without reading it.
    pub(super) fn new(body: Incoming, most: u64) -> Result<Self, HttpError> {
        if body.size_hint().lower() > most {
            return Err(too_large(most));
        }
        Ok(Self { body, most, received: 0, began: Instant::now() })
    }

    /// Reads the whole body.
    pub(super) async fn all(mut self) -> Result<Vec<u8>, HttpError> {
        let mut all = Vec::new();
        while let Some(bytes) = self.next().await? {
            all.extend_from_slice(&bytes);
        }
        Ok(all)
    }

    /// Returns the time at which a sender that has sent no more than this is too slow.
    fn deadline(&self) -> Instant {
        self.began + GRACE + Duration::from_secs(self.received / SLOWEST_BYTES_PER_SECOND)
    }
}

impl Content for LimitedBody {
    async fn next(&mut self) -> Result<Option<Bytes>, HttpError> {
        loop {
            let frame = tokio::time::timeout_at(self.deadline(), self.body.frame()).await;
            let frame = frame.map_err(|_| {
                HttpError::new(StatusCode::REQUEST_TIMEOUT, "the request's content came too slowly")
            })?;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|error| {
                HttpError::bad_request(format!("the request's content is broken: {error}"))
            })?;
            // Trailers are ignored.
            let Ok(bytes) = frame.into_data() else { continue };
            self.received += bytes.len() as u64;
            if self.received > self.most {
                return Err(too_large(self.most));
            }
            return Ok(Some(bytes));
        }
    }
}

fn too_large(most: u64) -> HttpError {
    let message =
        format!("the request's content is larger than {most} bytes, which is the maximum: send less");
    HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
}
