//! One HTTP/2 connection as a tower service for the generated clients.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use sandpod_protocol::limits;
use sandpod_protocol::v1::WriteResponse;
use sandpod_protocol::v1::files_client::FilesClient;
use sandpod_protocol::v1::process_client::ProcessClient;
use sandpod_protocol::v1::session_client::SessionClient;
use sandpod_protocol::v1::upload_request::Part;
use tokio::sync::mpsc;
use tonic::Status;
use tower_service::Service;

use super::upload::UploadService;
use crate::connection_driver::ConnectionDriver;
use crate::path_bounds::EncodedPathBounds;

/// HTTP/2 requires an authority. Any value works on a stream to one guest.
const ORIGIN: &str = "http://guest";

/// Sends calls over one stream.
#[derive(Clone)]
pub(crate) struct Channel {
    sender: SendRequest<tonic::body::Body>,
    driver: ConnectionDriver,
    /// Sent with every call.
    bounds: Option<EncodedPathBounds>,
}

/// The stream broke before the answer was complete. This error deliberately has no source: tonic would treat the source as
/// the guest's answer.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Lost(String);

impl Lost {
    fn new(error: &hyper::Error) -> Self {
        let source = std::error::Error::source(error);
        Self(source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}")))
    }

    fn unheard() -> Self {
        Self("the stream ended without an answer".to_owned())
    }

    /// Returns why the stream broke, if that is the cause of `status`.
    pub(super) fn reason(status: &Status) -> Option<&str> {
        let lost: &Self = std::error::Error::source(status)?.downcast_ref()?;
        Some(&lost.0)
    }
}

macro_rules! client {
    ($client:ident by $service:expr) => {
        $client::with_origin($service, http::Uri::from_static(ORIGIN))
            .max_decoding_message_size(limits::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(limits::MAX_MESSAGE_BYTES)
    };
}

impl Channel {
    pub(super) fn new(sender: SendRequest<tonic::body::Body>, driver: ConnectionDriver) -> Self {
        Self { sender, driver, bounds: None }
    }

    /// Adds path bounds to every call.
    pub(super) fn within(mut self, bounds: EncodedPathBounds) -> Self {
        self.bounds = Some(bounds);
        self
    }

    pub(crate) fn session(&self) -> SessionClient<Self> {
        client!(SessionClient by self.clone())
    }

    pub(crate) fn process(&self) -> ProcessClient<Self> {
        client!(ProcessClient by self.clone())
    }

    pub(crate) fn files(&self) -> FilesClient<Self> {
        client!(FilesClient by self.clone())
    }

    /// Uploads `parts` as they arrive.
    pub(crate) async fn upload(
        &self,
        parts: mpsc::Receiver<Part>,
    ) -> Result<tonic::Response<WriteResponse>, Status> {
        let carrier = UploadService::new(self.clone(), parts);
        client!(FilesClient by carrier).upload(tokio_stream::empty()).await
    }

    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

impl Service<http::Request<tonic::body::Body>> for Channel {
    type Response = http::Response<ResponseBody>;
    type Error = Lost;
    type Future = BoxFuture<'static, Result<Self::Response, Lost>>;

    /// Is always ready: the guest accepts more calls than a client makes, and `call` reports the end of a stream. An error from
    /// here would lose its type and look like an invalid answer.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<tonic::body::Body>) -> Self::Future {
        if let Some(bounds) = &self.bounds {
            bounds.put_into(request.headers_mut());
        }
        let (response, driver) = (self.sender.send_request(request), self.driver.clone());
        async move {
            let response = driver.response_or_end(response).await.ok_or_else(Lost::unheard)?;
            response.map(ResponseBody::of).map_err(|error| Lost::new(&error))
        }
        .boxed()
    }
}

/// Body of an answer. A guest that dies may end it as if it were complete: without a status it is not.
pub(crate) struct ResponseBody {
    body: Incoming,
    has_status: bool,
}

impl ResponseBody {
    fn of(response: http::Response<Incoming>) -> http::Response<Self> {
        let is_grpc = response.status() == http::StatusCode::OK;
        let has_status = !is_grpc || response.headers().contains_key("grpc-status");
        response.map(|body| Self { body, has_status })
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Lost;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Lost>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(match frame {
            Some(Ok(frame)) => {
                self.has_status |= frame.is_trailers();
                Some(Ok(frame))
            }
            Some(Err(error)) => Some(Err(Lost::new(&error))),
            None if self.has_status => None,
            None => Some(Err(Lost("the guest ended the call without an answer".to_owned()))),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.has_status && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use sandpod_protocol::v1::StatRequest;

    use super::*;

    #[tokio::test]
    async fn a_call_on_a_stream_that_has_ended_already_is_lost() {
        let (ours, theirs) = tokio::io::duplex(1024);
        let (send, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(ours)).await.unwrap();
        drop(theirs);
        let _ = connection.await;
        let channel = Channel::new(send, ConnectionDriver::spawn(std::future::ready(())));
        assert!(channel.is_closed());
        let status = channel.files().stat(StatRequest::default()).await.unwrap_err();
        assert!(Lost::reason(&status).is_some(), "{status:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn unanswered_call_is_lost_when_its_stream_ends() {
        let (ours, _silent) = tokio::io::duplex(1024);
        let (send, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(ours)).await.unwrap();
        // Kept alive but not polled: hyper does not notify a request that it loses either.
        let _connection = connection;
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let channel = Channel::new(send, ConnectionDriver::spawn(ended));
        drop(end);
        assert!(!channel.is_closed());
        let status = channel.files().stat(StatRequest::default()).await.unwrap_err();
        assert_eq!(Lost::reason(&status), Some("the stream ended without an answer"));
    }
}
