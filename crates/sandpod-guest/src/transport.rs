//! gRPC on any byte stream: HTTP/2 by hyper, the services by tonic.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use sandpod_protocol::v1::files_server::{self, FilesServer};
use sandpod_protocol::v1::process_server::{self, ProcessServer};
use sandpod_protocol::v1::session_server::{self, SessionServer};
use sandpod_protocol::{CoalescingStream, PREAMBLE, limits};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio_io_timeout::TimeoutStream;
use tonic::body::Body;
use tonic::codegen::Service as _;

use crate::activity::{Activity, Call};
use crate::files::FileService;
use crate::network::auth::{self, StreamAuth};
use crate::process::ProcessService;
use crate::session::SessionService;
use crate::session::binding::Binding;

/// Path of the call that authenticates a stream.
const HELLO: &str = "/sandpod.v1.Session/Hello";
/// Path of the call that a cleanup makes.
const END_IF_IDLE: &str = "/sandpod.v1.Session/EndIfIdle";

/// Time after which a silent client counts as gone: a live one answers HTTP/2 pings.
const READ_TIMEOUT: Duration = limits::KEEP_ALIVE.saturating_add(limits::KEEP_ALIVE_TIMEOUT);
/// Time after which a write that the client does not read fails.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Marks a call on a stream that came over the network.
#[derive(Clone)]
pub(crate) struct OverNetwork;

/// The services of one stream.
#[derive(Clone)]
pub(crate) struct Services {
    session: SessionServer<SessionService>,
    process: ProcessServer<ProcessService>,
    files: FilesServer<FileService>,
    activity: Activity,
    binding: Arc<Binding>,
    /// Authentication of a stream that came over the network.
    auth: Option<Arc<StreamAuth>>,
}

impl Services {
    pub(crate) fn new(
        session: SessionService,
        process: Arc<ProcessService>,
        files: Arc<FileService>,
        activity: Activity,
        binding: Arc<Binding>,
    ) -> Self {
        let max = limits::MAX_MESSAGE_BYTES;
        Self {
            session: SessionServer::new(session)
                .max_decoding_message_size(max)
                .max_encoding_message_size(max),
            process: ProcessServer::from_arc(process)
                .max_decoding_message_size(max)
                .max_encoding_message_size(max),
            files: FilesServer::from_arc(files).max_decoding_message_size(max).max_encoding_message_size(max),
            activity,
            binding,
            auth: None,
        }
    }

    /// Returns the same services for a stream that must authenticate.
    pub(crate) fn with_auth(self, auth: Arc<StreamAuth>) -> Self {
        Self { auth: Some(auth), ..self }
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        match self.auth.clone().filter(|auth| !auth.is_authenticated()) {
            Some(auth) => self.answer_unauthenticated(request, auth).await,
            None => self.answer_client(request).await,
        }
    }

    /// Answers only Hello. The call does not count as activity, so an unauthenticated client cannot keep the sandbox from being idle.
    async fn answer_unauthenticated(
        self,
        mut request: Request<Incoming>,
        auth: Arc<StreamAuth>,
    ) -> Result<Response<Body>, Infallible> {
        let _call = match auth.begin_call(request.uri().path() == HELLO) {
            Ok(call) => call,
            Err(failure) => return Ok(tonic::Status::from(failure).into_http()),
        };
        request.extensions_mut().insert(auth);
        self.session.max_decoding_message_size(auth::MAX_HELLO_BYTES).call(request).await
    }

    async fn answer_client(mut self, mut request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        // Neither call counts as activity: checking whether the sandbox is idle does not use it.
        let call = match request.uri().path() {
            HELLO | END_IF_IDLE => None,
            _ => Some(self.activity.begin().await),
        };
        if self.auth.is_some() {
            request.extensions_mut().insert(OverNetwork);
        }
        let service = request.uri().path().split('/').nth(1);
        if service != Some(session_server::SERVICE_NAME)
            && let Err(failure) = self.binding.check_ready()
        {
            return Ok(tonic::Status::from(failure).into_http());
        }
        let response = match service {
            Some(files_server::SERVICE_NAME) => self.files.call(request).await?,
            Some(process_server::SERVICE_NAME) => self.process.call(request).await?,
            Some(session_server::SERVICE_NAME) => self.session.call(request).await?,
            _ => tonic::Status::unimplemented("this guest has no such service").into_http(),
        };
        Ok(until_sent(call, response))
    }
}

/// Keeps the call alive until its response is sent or abandoned, by moving it into the body.
pub(crate) fn until_sent(call: Option<Call>, response: Response<Body>) -> Response<Body> {
    let hold = move |frame| {
        let _ = &call;
        frame
    };
    response.map(|body| Body::new(body.map_frame(hold)))
}

/// Sends the preamble and answers calls until the stream ends.
pub(crate) async fn serve(mut stream: Box<dyn ByteStream>, services: Services) -> io::Result<()> {
    stream.write_all(PREAMBLE).await?;
    stream.flush().await?;
    answer(stream, Arc::new(services), &Http2Limits::CLIENT).await
}

/// Wraps a stream so that it fails when its client reads nothing of what is sent, or sends nothing for `read_timeout`.
pub(crate) fn with_timeouts<S>(stream: S, read_timeout: Option<Duration>) -> Pin<Box<TimeoutStream<S>>>
where
    S: AsyncRead + AsyncWrite,
{
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIMEOUT));
    stream.set_read_timeout(read_timeout);
    Box::pin(stream)
}

/// A byte stream. It is boxed, as the handler is, so that HTTP's large code is compiled once.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Handles HTTP requests.
pub(crate) trait Answer: Send + Sync {
    fn answer(self: Arc<Self>, request: Request<Incoming>) -> ResponseFuture;
}

/// The future of a response.
pub(crate) type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl Answer for Services {
    fn answer(self: Arc<Self>, request: Request<Incoming>) -> ResponseFuture {
        Box::pin(Self::clone(&self).answer(request))
    }
}

/// Limits for the calls and the buffered bytes of one HTTP/2 connection.
pub(crate) struct Http2Limits {
    calls: u32,
    stream_window: u32,
    connection_window: u32,
}

impl Http2Limits {
    /// For a client of ours.
    const CLIENT: Self = Self {
        calls: limits::MAX_CALLS,
        stream_window: limits::STREAM_WINDOW,
        connection_window: limits::CONNECTION_WINDOW,
    };
    /// For unauthenticated connections: enough to follow and write to all processes.
    pub(crate) const UNAUTHENTICATED: Self =
        Self { calls: limits::MAX_CALLS / 2, stream_window: 256 << 10, connection_window: 1 << 20 };
}

/// Answers requests until the stream ends.
pub(crate) async fn answer(
    stream: Box<dyn ByteStream>,
    answers: Arc<dyn Answer>,
    http2_limits: &Http2Limits,
) -> io::Result<()> {
    // hyper sends GOAWAY to a client that answers no ping and waits until it is written, which never happens if the client
    // reads nothing.
    let stream = with_timeouts(stream, Some(READ_TIMEOUT));
    http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(http2_limits.calls)
        .initial_stream_window_size(http2_limits.stream_window)
        .max_frame_size(limits::FRAME_BYTES)
        .initial_connection_window_size(http2_limits.connection_window)
        .keep_alive_interval(limits::KEEP_ALIVE)
        .keep_alive_timeout(limits::KEEP_ALIVE_TIMEOUT)
        .serve_connection(
            TokioIo::new(CoalescingStream::new(stream)),
            service_fn(move |request| answers.clone().answer(request)),
        )
        .await
        .map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    /// Sends a response without an end.
    struct Endless;

    impl Answer for Endless {
        fn answer(self: Arc<Self>, _: Request<Incoming>) -> ResponseFuture {
            let frames =
                stream::repeat_with(|| Ok::<_, tonic::Status>(Frame::data(Bytes::from_static(&[0; 1024]))));
            Box::pin(async { Ok(Response::new(Body::new(StreamBody::new(frames)))) })
        }
    }

    /// The bytes of one request: the preface, empty settings, and the headers of `GET /`.
    const REQUEST: &[&[u8]] = &[
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\0\0\0\x04\0\0\0\0\0",
        b"\0\0\x03\x01\x05\0\0\0\x01\x82\x86\x84",
    ];

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_when_its_client_neither_reads_nor_closes_it() {
        let (mut ours, theirs) = tokio::io::duplex(1024);
        let served = tokio::spawn(answer(Box::new(theirs), Arc::new(Endless), &Http2Limits::CLIENT));
        ours.write_all(&REQUEST.concat()).await.unwrap();
        let ended = tokio::time::timeout(2 * READ_TIMEOUT, served).await;
        assert!(ended.is_ok(), "the stream is still open");
    }
}
