//! HTTP/1.1 server for both HTTP APIs and for the port that serves only sandpod's stream, with timeouts for slow senders and
//! readers.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::body::Body;

use super::http_error::HttpError;
use crate::activity::Activity;
use crate::transport::{Answer, ResponseFuture, until_sent, with_timeouts};

/// Timeout for a request's head, and for an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of a request's head.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// An HTTP API.
pub(crate) trait Api: Send + Sync + 'static {
    /// Paths whose requests do not count as activity: probes, and opening a stream of sandpod's.
    const NO_ACTIVITY: &'static [&'static str];

    fn activity(&self) -> &Activity;

    fn answer(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Body>, HttpError>> + Send;

    /// Returns the API's response for an error.
    fn error_response(&self, error: HttpError) -> Response<Body>;
}

impl<A: Api> Answer for A {
    fn answer(self: Arc<Self>, request: Request<Incoming>) -> ResponseFuture {
        Box::pin(async move {
            let is_use = !A::NO_ACTIVITY.contains(&request.uri().path());
            let call = if is_use { Some(self.activity().begin().await) } else { None };
            let response =
                Api::answer(&*self, request).await.unwrap_or_else(|error| self.error_response(error));
            Ok(until_sent(call, response))
        })
    }
}

/// Serves the requests of one connection.
pub(crate) async fn serve<S>(stream: S, api: Arc<dyn Answer>)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let service = service_fn(move |request| api.clone().answer(request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(with_timeouts(stream, None)), service);
    // A broken connection needs no handling here.
    let _ = connection.with_upgrades().await;
}

pub(crate) fn json(status: StatusCode, content: &impl Serialize) -> Response<Body> {
    let content = serde_json::to_vec(content).unwrap_or_default();
    let length = content.len();
    let mut response = Response::new(Body::new(http_body_util::Full::from(content)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, length.into());
    headers.insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

/// Decodes a part of a URL.
pub(super) fn decode(text: &str) -> Result<String, HttpError> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| HttpError::bad_request("the path is not UTF-8"))
}
