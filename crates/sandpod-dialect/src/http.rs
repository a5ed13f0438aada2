//! HTTP client for one port of a sandbox, with a pool of connections.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use sandpod_client::{ConnectionDriver, DialError};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::error::RuntimeError;
use crate::{Connector, HttpConnection};

/// Time limit of an answer. It exceeds the time that the router allows for a response head, which no request needs.
const ANSWER_LIMIT: Duration = Duration::from_secs(45);
/// Maximum size of an answer.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// Maximum number of idle connections.
const MAX_IDLE: usize = 4;

/// Content type of most requests.
pub(crate) const JSON: &str = "application/json";

/// A client for one port of a sandbox.
pub(crate) struct HttpClient {
    connector: Arc<dyn Connector>,
    port: u16,
    idle: Mutex<Vec<PooledConnection>>,
    gone: CancellationToken,
}

/// An open connection.
struct PooledConnection {
    sender: SendRequest<Full<Bytes>>,
    driver: ConnectionDriver,
    host: String,
    headers: Vec<(String, String)>,
}

/// A request.
#[derive(Clone)]
pub(crate) struct ApiRequest {
    pub(crate) method: Method,
    /// Path and query, encoded.
    pub(crate) path: String,
    pub(crate) content_type: String,
    pub(crate) body: Bytes,
}

impl ApiRequest {
    pub(crate) fn get(path: impl Into<String>) -> Self {
        let (method, path) = (Method::GET, path.into());
        Self { method, path, content_type: JSON.to_owned(), body: Bytes::new() }
    }
}

impl HttpClient {
    pub(crate) fn new(connector: Arc<dyn Connector>, port: u16, gone: CancellationToken) -> Self {
        Self { connector, port, idle: Mutex::default(), gone }
    }

    /// Sends a request and returns the answer, whatever its status.
    pub(crate) async fn send(&self, request: &ApiRequest) -> Result<(StatusCode, Bytes), RuntimeError> {
        let asking = async {
            // The server may have closed an idle connection, which does not mean that the next one fails.
            while let Some(connection) = self.take_idle() {
                if let Some(answer) = self.send_over(connection, request).await? {
                    return Ok(answer);
                }
            }
            let not_sent = || RuntimeError::NotSent("the connection was closed at once".to_owned());
            self.send_over(self.open().await?, request).await?.ok_or_else(not_sent)
        };
        let slow = || RuntimeError::NoAnswer(format!("no answer within {}s", ANSWER_LIMIT.as_secs()));
        let answer = timeout(ANSWER_LIMIT, asking).await.unwrap_or_else(|_| Err(slow()));
        match &answer {
            Ok((status, _)) if !is_of_a_router(*status) => {}
            // If the sandbox is gone, a router returns such a status, or no answer.
            Ok(_) | Err(RuntimeError::NoAnswer(_)) => self.check_gone().await?,
            Err(_) => {}
        }
        answer
    }

    /// Sends a request over a connection. `None`: the request was not sent.
    async fn send_over(
        &self,
        mut connection: PooledConnection,
        request: &ApiRequest,
    ) -> Result<Option<(StatusCode, Bytes)>, RuntimeError> {
        if connection.sender.ready().await.is_err() {
            return Ok(None);
        }
        let request = connection.request(request)?;
        let response = match connection.driver.response_or_end(connection.sender.send_request(request)).await
        {
            Some(Ok(response)) => response,
            Some(Err(error)) if error.is_canceled() => return Ok(None),
            Some(Err(error)) => return Err(RuntimeError::NoAnswer(error.to_string())),
            None => return Err(RuntimeError::NoAnswer("the connection ended without an answer".to_owned())),
        };
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
        let body =
            body.map_err(|error| RuntimeError::NoAnswer(format!("the answer is incomplete: {error}")))?;
        if head.status.is_server_error() {
            self.idle().clear();
        } else {
            self.put_idle(connection);
        }
        Ok(Some((head.status, body.to_bytes())))
    }

    /// Opens a connection, which fails with [`RuntimeError::Gone`] if the sandbox is gone. Ignores other errors.
    async fn check_gone(&self) -> Result<(), RuntimeError> {
        match self.open().await {
            Ok(opened) => self.put_idle(opened),
            Err(gone @ RuntimeError::Gone(_)) => return Err(gone),
            Err(_) => {}
        }
        Ok(())
    }

    async fn open(&self) -> Result<PooledConnection, RuntimeError> {
        let HttpConnection { stream, host, headers } = open(&*self.connector, self.port, &self.gone).await?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| not_sent(&error))?;
        Ok(PooledConnection { sender, driver: ConnectionDriver::spawn(connection), host, headers })
    }

    fn take_idle(&self) -> Option<PooledConnection> {
        self.idle().pop()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<PooledConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put_idle(&self, connection: PooledConnection) {
        let mut idle = self.idle();
        if idle.len() < MAX_IDLE && !connection.sender.is_closed() {
            idle.push(connection);
        }
    }
}

impl PooledConnection {
    fn request(&self, request: &ApiRequest) -> Result<Request<Full<Bytes>>, RuntimeError> {
        let (host, prefix) = self.host.split_once('/').unwrap_or((&self.host, ""));
        let prefix = prefix.trim_end_matches('/');
        let slash = if prefix.is_empty() { "" } else { "/" };
        let request = Request::builder()
            .method(request.method.clone())
            .uri(format!("{slash}{prefix}{}", request.path))
            .header(header::HOST, host)
            .header(header::CONTENT_TYPE, &request.content_type)
            .body(Full::new(request.body.clone()));
        let mut request =
            request.map_err(|error| RuntimeError::Refused(format!("invalid request: {error}")))?;
        for (name, value) in &self.headers {
            let unusable = || RuntimeError::Refused(format!("invalid HTTP header {name:?}"));
            let value = HeaderValue::from_str(value).map_err(|_| unusable())?;
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| unusable())?;
            request.headers_mut().insert(name, value);
        }
        Ok(request)
    }
}

/// Opens a connection to a port. If the sandbox is gone, cancels `gone`, which ends all streams.
pub(crate) async fn open(
    connector: &dyn Connector,
    port: u16,
    gone: &CancellationToken,
) -> Result<HttpConnection, RuntimeError> {
    match connector.open(port).await {
        Ok(line) => Ok(line),
        Err(DialError::Unreachable(why)) => Err(RuntimeError::NotSent(why)),
        Err(DialError::Denied(why)) => Err(RuntimeError::Refused(why)),
        Err(DialError::Gone(why)) => {
            gone.cancel();
            Err(RuntimeError::Gone(why))
        }
    }
}

fn not_sent(error: &hyper::Error) -> RuntimeError {
    RuntimeError::NotSent(error.to_string())
}

/// Returns whether a router answers in place of a runtime that it cannot reach.
fn is_of_a_router(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT)
}

/// Returns the text of an error response.
pub(crate) fn refusal_text(status: StatusCode, body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let text: String = text.chars().take(200).collect();
    format!("{status} {}", text.trim())
}
