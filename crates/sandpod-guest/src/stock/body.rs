//! The content of a request, as it arrives: not too much of it, and not too slowly.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use tokio::time::Instant;

use super::refusal::Refusal;

/// The largest file that is taken.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 30;
/// How far a sender may fall behind the slowest that is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
const SLOWEST_BYTES_PER_SECOND: u64 = 16 << 10;

/// Bytes that come one piece after the other.
pub(super) trait Content: Send {
    /// The next piece, if there is one.
    fn next(&mut self) -> impl Future<Output = Result<Option<Bytes>, Refusal>> + Send;
}

/// A request's body.
pub(super) struct Arriving {
    body: Incoming,
    most: u64,
    received: u64,
    began: Instant,
}

impl Arriving {
    /// A body of at most so many bytes; one that says that it has more is refused unread.
    pub(super) fn new(body: Incoming, most: u64) -> Result<Self, Refusal> {
        if body.size_hint().lower() > most {
            return Err(too_large(most));
        }
        Ok(Self { body, most, received: 0, began: Instant::now() })
    }

    /// All of it at once.
    pub(super) async fn all(mut self) -> Result<Vec<u8>, Refusal> {
        let mut all = Vec::new();
        while let Some(bytes) = self.next().await? {
            all.extend_from_slice(&bytes);
        }
        Ok(all)
    }

    /// When a sender that is not too slow has sent more than this.
    fn deadline(&self) -> Instant {
        self.began + PATIENCE + Duration::from_secs(self.received / SLOWEST_BYTES_PER_SECOND)
    }
}

impl Content for Arriving {
    async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        loop {
            let frame = tokio::time::timeout_at(self.deadline(), self.body.frame()).await;
            let frame = frame.map_err(|_| {
                Refusal::new(StatusCode::REQUEST_TIMEOUT, "the request's content came too slowly")
            })?;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame
                .map_err(|error| Refusal::bad_request(format!("the request's content is broken: {error}")))?;
            // Trailers say nothing here.
            let Ok(bytes) = frame.into_data() else { continue };
            self.received += bytes.len() as u64;
            if self.received > self.most {
                return Err(too_large(self.most));
            }
            return Ok(Some(bytes));
        }
    }
}

fn too_large(most: u64) -> Refusal {
    let message = format!("the request's content is larger than {most} bytes, which is the most: send less");
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message)
}
