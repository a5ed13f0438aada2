//! A guest in this process and a client of it.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use sandpod_guest::{Guest, Options};
use sandpod_protocol::v1::command::What;
use sandpod_protocol::v1::files_client::FilesClient;
use sandpod_protocol::v1::process_client::ProcessClient;
use sandpod_protocol::v1::session_client::SessionClient;
use sandpod_protocol::v1::{
    Argv, BindRequest, Command, EndIfIdleRequest, ExecuteRequest, ExecuteResponse, ExtendRequest,
    HelloRequest, HelloResponse, Operation, StatsRequest, StatsResponse,
};
use sandpod_protocol::{Failure, PREAMBLE, limits};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tonic::body::Body;

/// A connection for tonic's clients.
#[derive(Clone)]
pub(crate) struct Wire(hyper::client::conn::http2::SendRequest<Body>);

impl tower_service::Service<http::Request<Body>> for Wire {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

impl Wire {
    /// Connects on a stream whose other end speaks gRPC at once.
    pub(crate) async fn on<S>(stream: S) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(limits::STREAM_WINDOW)
            .handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        Self(sender)
    }
}

/// A client with a session of its own.
pub(crate) struct Client {
    pub(crate) files: FilesClient<Wire>,
    pub(crate) process: ProcessClient<Wire>,
    pub(crate) session: SessionClient<Wire>,
    name: String,
    calls: AtomicU64,
}

/// Options for a guest with its state in a directory. `SANDPOD_DISABLED_KERNEL_FEATURES` runs the whole suite as on a kernel
/// without these features.
pub(crate) fn options(dir: &std::path::Path) -> Options {
    let disabled = std::env::var("SANDPOD_DISABLED_KERNEL_FEATURES").unwrap_or_default().parse().unwrap();
    Options { disabled_kernel_features: disabled, ..Options::new(dir) }
}

/// A guest with its state in a temporary directory.
pub(crate) fn guest() -> (Guest, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    (Guest::new(options(dir.path())).unwrap(), dir)
}

/// A client of a new guest.
pub(crate) async fn client() -> (Client, tempfile::TempDir) {
    let (guest, dir) = guest();
    (Client::of(&guest).await, dir)
}

impl Client {
    pub(crate) async fn of(guest: &Guest) -> Self {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let guest = guest.clone();
        tokio::spawn(async move { guest.serve_stream(theirs).await });
        Self::on(ours).await
    }

    /// A client on any stream to a guest.
    pub(crate) async fn on<S>(mut stream: S) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let mut preamble = vec![0; PREAMBLE.len()];
        stream.read_exact(&mut preamble).await.unwrap();
        assert_eq!(preamble, PREAMBLE);
        let origin = http::Uri::from_static("http://guest");
        let (wire, max) = (Wire::on(stream).await, limits::MAX_MESSAGE_BYTES);
        let files = FilesClient::with_origin(wire.clone(), origin.clone());
        let process = ProcessClient::with_origin(wire.clone(), origin.clone());
        Self {
            files: files.max_decoding_message_size(max).max_encoding_message_size(max),
            process: process.max_decoding_message_size(max).max_encoding_message_size(max),
            session: SessionClient::with_origin(wire, origin),
            name: "test".to_owned(),
            calls: AtomicU64::new(0),
        }
    }

    pub(crate) fn named(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    pub(crate) fn operation(&self) -> Operation {
        let number = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        Operation { session: self.name.clone(), number, ..Operation::default() }
    }

    pub(crate) async fn hello(&self, min_version: u32, max_version: u32) -> Result<HelloResponse, Failure> {
        self.hello_as(HelloRequest { min_version, max_version, ..HelloRequest::default() }).await
    }

    pub(crate) async fn hello_with(&self, token: &'static str) -> Result<HelloResponse, Failure> {
        let token = token.into();
        self.hello_as(HelloRequest { min_version: 1, max_version: 1, token, ..HelloRequest::default() }).await
    }

    async fn hello_as(&self, request: HelloRequest) -> Result<HelloResponse, Failure> {
        let request = HelloRequest { session: self.name.clone(), ..request };
        let answer = self.session.clone().hello(request).await;
        answer.map(tonic::Response::into_inner).map_err(|status| Failure::from(&status))
    }

    pub(crate) async fn bind(&self, request: BindRequest) -> Result<(), Failure> {
        self.session.clone().bind(request).await.map(drop).map_err(|status| Failure::from(&status))
    }

    pub(crate) async fn stats(&self) -> StatsResponse {
        self.session.clone().stats(StatsRequest {}).await.unwrap().into_inner()
    }

    pub(crate) async fn extend(&self, claim: &str, ttl_seconds: u64) -> Result<(), Failure> {
        let request = ExtendRequest { claim: claim.to_owned(), ttl_seconds };
        self.session.clone().extend(request).await.map(drop).map_err(|status| Failure::from(&status))
    }

    pub(crate) async fn end_if_idle(&self, claim: &str, idle_ms: u64) -> Result<bool, Failure> {
        let request = EndIfIdleRequest { claim: claim.to_owned(), idle_ms };
        let answer = self.session.clone().end_if_idle(request).await;
        answer.map(|answer| answer.into_inner().ends).map_err(|status| Failure::from(&status))
    }

    pub(crate) async fn execute(&self, command: Command) -> Result<ExecuteResponse, Failure> {
        self.execute_as(self.operation(), command).await
    }

    pub(crate) async fn execute_as(
        &self,
        operation: Operation,
        command: Command,
    ) -> Result<ExecuteResponse, Failure> {
        let request = ExecuteRequest { operation: Some(operation), command: Some(command) };
        let answer = self.process.clone().execute(request).await;
        answer.map(tonic::Response::into_inner).map_err(|status| Failure::from(&status))
    }

    /// Runs a line, and returns its output and exit code.
    pub(crate) async fn run(&self, text: &str) -> (String, i32) {
        let answer = self.execute(line(text)).await.unwrap();
        (String::from_utf8(answer.output.to_vec()).unwrap(), answer.exit_code)
    }
}

pub(crate) fn line(line: &str) -> Command {
    Command { what: Some(What::Line(line.to_owned())), ..Command::default() }
}

pub(crate) fn argv(words: &[&str]) -> Command {
    let words = words.iter().map(|word| (*word).to_owned()).collect();
    Command { what: Some(What::Argv(Argv { words })), ..Command::default() }
}
