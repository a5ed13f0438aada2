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
use crate::network::gate::{self, Gate};
use crate::process::ProcessService;
use crate::session::SessionService;
use crate::session::binding::Binding;

/// The call that opens a gate.
const HELLO: &str = "/sandpod.v1.Session/Hello";
/// The call of a cleanup.
const END_IF_IDLE: &str = "/sandpod.v1.Session/EndIfIdle";

/// How long a client may send nothing: a live one answers the pings of HTTP/2.
const SILENCE: Duration = limits::KEEP_ALIVE.saturating_add(limits::KEEP_ALIVE_TIMEOUT);
/// How long a client may read nothing of what is sent to it.
const READER_LIMIT: Duration = Duration::from_secs(60);

/// Marks a call on a stream that came over the network.
#[derive(Clone)]
pub(crate) struct OverNetwork;

/// The services that a stream reaches.
#[derive(Clone)]
pub(crate) struct Services {
    session: SessionServer<SessionService>,
    process: ProcessServer<ProcessService>,
    files: FilesServer<FileService>,
    activity: Activity,
    binding: Arc<Binding>,
    /// What holds back calls on a stream that came over the network.
    gate: Option<Arc<Gate>>,
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
            gate: None,
        }
    }

    /// The same services for a stream with a gate.
    pub(crate) fn behind(self, gate: Arc<Gate>) -> Self {
        Self { gate: Some(gate), ..self }
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        match self.gate.clone().filter(|gate| !gate.is_open()) {
            Some(gate) => self.answer_stranger(request, gate).await,
            None => self.answer_client(request).await,
        }
    }

    /// Hears nothing but Hello. It is no use of the sandbox that would keep it from being idle.
    async fn answer_stranger(
        self,
        mut request: Request<Incoming>,
        gate: Arc<Gate>,
    ) -> Result<Response<Body>, Infallible> {
        let _call = match gate.take_call(request.uri().path() == HELLO) {
            Ok(call) => call,
            Err(failure) => return Ok(tonic::Status::from(failure).into_http()),
        };
        request.extensions_mut().insert(gate);
        self.session.max_decoding_message_size(gate::MAX_HELLO_BYTES).call(request).await
    }

    async fn answer_client(mut self, mut request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        // Neither keeps the sandbox from being idle: who only looks whether it is does not use it.
        let call = match request.uri().path() {
            HELLO | END_IF_IDLE => None,
            _ => Some(self.activity.begin().await),
        };
        if self.gate.is_some() {
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

/// The call lasts until its answer is sent or given up, so the body holds it.
pub(crate) fn until_sent(call: Option<Call>, response: Response<Body>) -> Response<Body> {
    let hold = move |frame| {
        let _ = &call;
        frame
    };
    response.map(|body| Body::new(body.map_frame(hold)))
}

/// Says the preamble and answers calls until the stream ends.
pub(crate) async fn serve(mut stream: Box<dyn ByteStream>, services: Services) -> io::Result<()> {
    stream.write_all(PREAMBLE).await?;
    stream.flush().await?;
    answer(stream, Arc::new(services), &Allowance::CLIENT).await
}

/// A stream that breaks when its client reads nothing of what is sent, or is silent for too long.
pub(crate) fn patient<S>(stream: S, silence: Option<Duration>) -> Pin<Box<TimeoutStream<S>>>
where
    S: AsyncRead + AsyncWrite,
{
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(READER_LIMIT));
    stream.set_read_timeout(silence);
    Box::pin(stream)
}

/// A stream of bytes. Boxed, as what answers is: HTTP's code is large, and one copy of it is enough.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// What answers requests.
pub(crate) trait Answer: Send + Sync {
    fn answer(self: Arc<Self>, request: Request<Incoming>) -> Answering;
}

/// An answer on its way.
pub(crate) type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl Answer for Services {
    fn answer(self: Arc<Self>, request: Request<Incoming>) -> Answering {
        Box::pin(Self::clone(&self).answer(request))
    }
}

/// What the other end of a stream may have under way: its calls, and bytes that are not taken yet.
pub(crate) struct Allowance {
    calls: u32,
    stream_window: u32,
    connection_window: u32,
}

impl Allowance {
    /// For a client of ours, which is known.
    const CLIENT: Self = Self {
        calls: limits::MAX_CALLS,
        stream_window: limits::STREAM_WINDOW,
        connection_window: limits::CONNECTION_WINDOW,
    };
    /// For connections that bring no token: all processes can be followed and written to.
    pub(crate) const UNKNOWN: Self =
        Self { calls: limits::MAX_CALLS / 2, stream_window: 256 << 10, connection_window: 1 << 20 };
}

/// Answers calls until the stream ends.
pub(crate) async fn answer(
    stream: Box<dyn ByteStream>,
    answers: Arc<dyn Answer>,
    allowance: &Allowance,
) -> io::Result<()> {
    // hyper sends a GOAWAY to a client that answers no ping, and waits until it is written: for ever if the client
    // reads nothing either.
    let stream = patient(stream, Some(SILENCE));
    http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(allowance.calls)
        .initial_stream_window_size(allowance.stream_window)
        .max_frame_size(limits::FRAME_BYTES)
        .initial_connection_window_size(allowance.connection_window)
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

    /// Answers without an end.
    struct Endless;

    impl Answer for Endless {
        fn answer(self: Arc<Self>, _: Request<Incoming>) -> Answering {
            let frames =
                stream::repeat_with(|| Ok::<_, tonic::Status>(Frame::data(Bytes::from_static(&[0; 1024]))));
            Box::pin(async { Ok(Response::new(Body::new(StreamBody::new(frames)))) })
        }
    }

    /// What a client sends for one request: the preface, no settings, and the headers of `GET /`.
    const REQUEST: &[&[u8]] = &[
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\0\0\0\x04\0\0\0\0\0",
        b"\0\0\x03\x01\x05\0\0\0\x01\x82\x86\x84",
    ];

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_although_its_client_neither_reads_nor_closes_it() {
        let (mut ours, theirs) = tokio::io::duplex(1024);
        let served = tokio::spawn(answer(Box::new(theirs), Arc::new(Endless), &Allowance::CLIENT));
        ours.write_all(&REQUEST.concat()).await.unwrap();
        let ended = tokio::time::timeout(2 * SILENCE, served).await;
        assert!(ended.is_ok(), "the stream is still open");
    }
}
