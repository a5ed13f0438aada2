//! Serves our protocol inside this process.

use std::convert::Infallible;
use std::sync::Arc;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use sandpod_client::ByteStream;
use sandpod_protocol::v1::files_server::{self, FilesServer};
use sandpod_protocol::v1::process_server::{self, ProcessServer};
use sandpod_protocol::v1::session_server::{self, SessionServer};
use sandpod_protocol::{CoalescingStream, PREAMBLE, limits};
use tokio::io::{AsyncWriteExt as _, DuplexStream};
use tokio_util::sync::CancellationToken;
use tonic::codegen::Service as _;

use crate::files::Files;
use crate::process::Process;
use crate::script_job::ScriptJobs;
use crate::session::{Binding, Session};

/// Size of the buffer between the two ends of a stream.
const BUFFER_BYTES: usize = 256 << 10;

/// The services of a guest, implemented by a runtime.
#[derive(Clone)]
pub(crate) struct Services {
    session: SessionServer<Session>,
    process: ProcessServer<Process>,
    files: FilesServer<Files>,
}

impl Services {
    pub(crate) fn new(jobs: Arc<ScriptJobs>) -> Self {
        let max = limits::MAX_MESSAGE_BYTES;
        let binding = Arc::new(Binding::new(jobs.clone()));
        let session = SessionServer::new(Session::new(jobs.clone(), binding.clone()));
        let process = ProcessServer::new(Process::new(jobs.clone(), binding.clone()));
        let files = FilesServer::new(Files::new(jobs, binding));
        Self {
            session: session.max_decoding_message_size(max).max_encoding_message_size(max),
            process: process.max_decoding_message_size(max).max_encoding_message_size(max),
            files: files.max_decoding_message_size(max).max_encoding_message_size(max),
        }
    }

    /// Opens a stream that is served until either end closes it or `gone` is cancelled.
    pub(crate) fn stream(&self, gone: &CancellationToken) -> Box<dyn ByteStream> {
        let (ours, theirs) = tokio::io::duplex(BUFFER_BYTES);
        let (services, gone) = (self.clone(), gone.clone());
        tokio::spawn(async move { gone.run_until_cancelled(services.answer(ours)).await });
        Box::new(theirs)
    }

    async fn answer(self, mut stream: DuplexStream) {
        if stream.write_all(PREAMBLE).await.is_err() {
            return;
        }
        let service = service_fn(move |request| self.clone().call(request));
        let served = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits::MAX_CALLS)
            .initial_stream_window_size(limits::STREAM_WINDOW)
            .max_frame_size(limits::FRAME_BYTES)
            .initial_connection_window_size(limits::CONNECTION_WINDOW)
            .serve_connection(TokioIo::new(CoalescingStream::new(stream)), service)
            .await;
        // The client's end reports the same error.
        drop(served);
    }

    async fn call(
        mut self,
        request: http::Request<hyper::body::Incoming>,
    ) -> Result<http::Response<tonic::body::Body>, Infallible> {
        match request.uri().path().split('/').nth(1) {
            Some(files_server::SERVICE_NAME) => self.files.call(request).await,
            Some(process_server::SERVICE_NAME) => self.process.call(request).await,
            Some(session_server::SERVICE_NAME) => self.session.call(request).await,
            _ => Ok(tonic::Status::unimplemented("a stock runtime has no such service").into_http()),
        }
    }
}
