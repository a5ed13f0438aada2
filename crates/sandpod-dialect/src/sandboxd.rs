//! sandboxd: gRPC for commands on one port, REST for files on another.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{Method, StatusCode, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use sandpod_client::{ConnectionDriver, DialError};
use sandpod_protocol::limits;
use sandpod_protocol::sandboxd::process_service_client::ProcessServiceClient;
use sandpod_protocol::sandboxd::{ExecuteRequest, ProcessConfig};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::codegen::StdError;
use tower_service::Service;

use crate::Connector;
use crate::error::RuntimeError;
use crate::http::{ApiRequest, HttpClient, JSON, open, refusal_text};
use crate::runtime::Runtime;

/// Time limit of an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(45);

/// The runtime.
pub(crate) struct Sandboxd {
    files: HttpClient,
    commands: Commands,
}

/// The client for its port for commands.
struct Commands {
    connector: Arc<dyn Connector>,
    port: u16,
    open: Mutex<Option<Channel>>,
    gone: CancellationToken,
}

impl Sandboxd {
    pub(crate) fn new(
        files: HttpClient,
        connector: Arc<dyn Connector>,
        port: u16,
        gone: CancellationToken,
    ) -> Self {
        Self { files, commands: Commands { connector, port, open: Mutex::default(), gone } }
    }

    /// Checks that both ports answer.
    pub(crate) async fn probe(&self) -> Result<(), DialError> {
        let asked = self.files.send(&ApiRequest::get("/v1/health")).await;
        let (status, body) = asked.map_err(RuntimeError::into_dial_error)?;
        match status {
            StatusCode::OK => {}
            status if status.is_server_error() => {
                return Err(DialError::Unreachable(refusal_text(status, &body)));
            }
            status => {
                return Err(DialError::Denied(format!(
                    "another program answers: {}",
                    refusal_text(status, &body)
                )));
            }
        }
        let tried = self.commands.execute(["true"].map(str::to_owned).to_vec()).await;
        tried.map(drop).map_err(RuntimeError::into_dial_error)
    }

    async fn upload(&self, path: String, content: Bytes) -> Result<(), RuntimeError> {
        let path = format!("/v1/files/{path}?mode=0644");
        let content_type = "application/octet-stream".to_owned();
        let request = ApiRequest { method: Method::PUT, path, content_type, body: content };
        let (status, body) = self.files.send(&request).await?;
        check_status(status, &body)
    }

    async fn download(&self, path: String) -> Result<Bytes, RuntimeError> {
        let path = format!("/v1/files/{path}");
        let request =
            ApiRequest { method: Method::GET, path, content_type: JSON.to_owned(), body: Bytes::new() };
        let (status, body) = self.files.send(&request).await?;
        check_status(status, &body)?;
        Ok(body)
    }
}

impl Commands {
    async fn execute(&self, command: Vec<String>) -> Result<Vec<u8>, RuntimeError> {
        let config = ProcessConfig { command, ..ProcessConfig::default() };
        let channel = self.channel().await?;
        let mut client = ProcessServiceClient::with_origin(channel, Uri::from_static("http://sandboxd"))
            .max_decoding_message_size(limits::MAX_MESSAGE_BYTES);
        let executing = client.execute(ExecuteRequest { config: Some(config) });
        let slow = |_| RuntimeError::NoAnswer(format!("no answer within {}s", ANSWER_LIMIT.as_secs()));
        let executed =
            timeout(ANSWER_LIMIT, executing).await.map_err(slow)?.map_err(|status| refused(&status))?;
        let executed = executed.into_inner();
        if executed.exit_code != 0 {
            let why = String::from_utf8_lossy(&executed.stderr).trim().to_owned();
            return Err(RuntimeError::Refused(format!("a script ended with {}: {why}", executed.exit_code)));
        }
        Ok(executed.stdout.into())
    }

    async fn channel(&self) -> Result<Channel, RuntimeError> {
        let open_one = self.open.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(channel) = open_one.filter(|channel| !channel.sender.is_closed()) {
            return Ok(channel);
        }
        let line = open(&*self.connector, self.port, &self.gone).await?;
        let handshake = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(limits::KEEP_ALIVE)
            .keep_alive_timeout(limits::KEEP_ALIVE_TIMEOUT)
            .handshake(TokioIo::new(line.stream))
            .await;
        let (sender, connection) = handshake.map_err(|error| RuntimeError::NotSent(error.to_string()))?;
        let channel = Channel { sender, driver: ConnectionDriver::spawn(connection) };
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = Some(channel.clone());
        Ok(channel)
    }
}

impl Runtime for Sandboxd {
    fn put(&self, path: String, content: Bytes) -> BoxFuture<'_, Result<(), RuntimeError>> {
        self.upload(path, content).boxed()
    }

    fn get(&self, path: String) -> BoxFuture<'_, Result<Bytes, RuntimeError>> {
        self.download(path).boxed()
    }

    fn run(&self, words: Vec<String>) -> BoxFuture<'_, Result<Vec<u8>, RuntimeError>> {
        self.commands.execute(words).boxed()
    }
}

fn check_status(status: StatusCode, body: &[u8]) -> Result<(), RuntimeError> {
    match status {
        status if status.is_success() => Ok(()),
        StatusCode::NOT_FOUND => Err(RuntimeError::NotFound),
        StatusCode::SERVICE_UNAVAILABLE => Err(RuntimeError::NoAnswer(refusal_text(status, body))),
        status => Err(RuntimeError::Refused(refusal_text(status, body))),
    }
}

/// Converts a status. One that the runtime sent is a refusal; one that was created here means that the connection broke.
fn refused(status: &tonic::Status) -> RuntimeError {
    match status.code() {
        tonic::Code::Unavailable | tonic::Code::Cancelled | tonic::Code::Unknown => {
            RuntimeError::NoAnswer(status.message().to_owned())
        }
        code => RuntimeError::Refused(format!("{code:?}: {}", status.message())),
    }
}

/// One HTTP/2 connection as a tower service for the generated client.
#[derive(Clone)]
struct Channel {
    sender: SendRequest<tonic::body::Body>,
    driver: ConnectionDriver,
}

impl Service<http::Request<tonic::body::Body>> for Channel {
    type Response = http::Response<Incoming>;
    type Error = StdError;
    type Future = BoxFuture<'static, Result<Self::Response, StdError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        self.sender.poll_ready(context).map_err(StdError::from)
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let (response, driver) = (self.sender.send_request(request), self.driver.clone());
        async move {
            let response =
                driver.response_or_end(response).await.ok_or("the connection ended without an answer")?;
            response.map_err(StdError::from)
        }
        .boxed()
    }
}
