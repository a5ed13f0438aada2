//! HTTP/1.1 for both HTTP APIs, and for a door that has our own stream alone, with patience for neither slow senders nor slow readers.

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

use super::refusal::Refusal;
use crate::activity::Activity;
use crate::transport::{Answer, ResponseFuture, until_sent, with_timeouts};

/// How long a request's head may take, and how long a connection may wait for its next request.
const HEAD_LIMIT: Duration = Duration::from_secs(60);
/// What a request's head may have.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// What answers requests.
pub(crate) trait Api: Send + Sync + 'static {
    /// The paths whose requests do not use the sandbox, so that it can be idle: probes, and opening a stream of ours.
    const PASSIVE: &'static [&'static str];

    fn activity(&self) -> &Activity;

    fn answer(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Body>, Refusal>> + Send;

    /// How the API says no.
    fn refuse(&self, refusal: Refusal) -> Response<Body>;
}

impl<A: Api> Answer for A {
    fn answer(self: Arc<Self>, request: Request<Incoming>) -> ResponseFuture {
        Box::pin(async move {
            let is_use = !A::PASSIVE.contains(&request.uri().path());
            let call = if is_use { Some(self.activity().begin().await) } else { None };
            let response = Api::answer(&*self, request).await.unwrap_or_else(|refusal| self.refuse(refusal));
            Ok(until_sent(call, response))
        })
    }
}

/// Answers the requests of one connection.
pub(crate) async fn serve<S>(stream: S, api: Arc<dyn Answer>)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let service = service_fn(move |request| api.clone().answer(request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(with_timeouts(stream, None)), service);
    // A connection that breaks is its client's matter.
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

/// A part of a URL as it is meant.
pub(super) fn decode(text: &str) -> Result<String, Refusal> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| Refusal::bad_request("the path is not UTF-8"))
}
