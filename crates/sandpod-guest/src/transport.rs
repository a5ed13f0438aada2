//! gRPC on any byte stream: HTTP/2 by hyper, the services by tonic.

use std::convert::Infallible;
use std::io;

use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use sandpod_protocol::v1::files_server::{self, FilesServer};
use sandpod_protocol::v1::process_server::{self, ProcessServer};
use sandpod_protocol::v1::session_server::{self, SessionServer};
use sandpod_protocol::{PREAMBLE, limits};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tonic::body::Body;
use tonic::codegen::Service as _;

use crate::activity::Activity;
use crate::files::FileService;
use crate::gather::Gathered;
use crate::process::ProcessService;
use crate::session::SessionService;

/// The services that a stream reaches.
#[derive(Clone)]
pub(crate) struct Services {
    session: SessionServer<SessionService>,
    process: ProcessServer<ProcessService>,
    files: FilesServer<FileService>,
    activity: Activity,
}

impl Services {
    pub(crate) fn new(
        session: SessionService,
        process: ProcessService,
        files: FileService,
        activity: Activity,
    ) -> Self {
        let max = limits::MAX_MESSAGE_BYTES;
        Self {
            session: SessionServer::new(session)
                .max_decoding_message_size(max)
                .max_encoding_message_size(max),
            process: ProcessServer::new(process)
                .max_decoding_message_size(max)
                .max_encoding_message_size(max),
            files: FilesServer::new(files).max_decoding_message_size(max).max_encoding_message_size(max),
            activity,
        }
    }

    async fn answer(mut self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let call = self.activity.begin();
        let response = match request.uri().path().split('/').nth(1) {
            Some(files_server::SERVICE_NAME) => self.files.call(request).await?,
            Some(process_server::SERVICE_NAME) => self.process.call(request).await?,
            Some(session_server::SERVICE_NAME) => self.session.call(request).await?,
            _ => tonic::Status::unimplemented("this guest has no such service").into_http(),
        };
        // The call lasts until its answer is sent or given up, so the body holds it.
        let hold = move |frame| {
            let _ = &call;
            frame
        };
        Ok(response.map(|body| Body::new(body.map_frame(hold))))
    }
}

/// Says the preamble and answers calls until the stream ends.
pub(crate) async fn serve<S>(mut stream: S, services: Services) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    stream.write_all(PREAMBLE).await?;
    stream.flush().await?;
    let service = hyper::service::service_fn(move |request| services.clone().answer(request));
    http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(limits::STREAM_WINDOW)
        .initial_connection_window_size(limits::CONNECTION_WINDOW)
        .keep_alive_interval(limits::KEEP_ALIVE)
        .keep_alive_timeout(limits::KEEP_ALIVE_TIMEOUT)
        .serve_connection(TokioIo::new(Gathered::new(stream)), service)
        .await
        .map_err(io::Error::other)
}
