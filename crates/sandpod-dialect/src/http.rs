//! Requests to one port of a sandbox, over connections that are kept for the next ones.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use sandpod_client::{DialError, Ending};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::error::RuntimeError;
use crate::{Line, Lines};

/// How long an answer may take. Nothing of ours takes as long as the router gives an answer's head.
const ANSWER_LIMIT: Duration = Duration::from_secs(45);
/// The largest answer.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// The connections that are kept.
const MAX_IDLE: usize = 4;

/// What most requests hold.
pub(crate) const JSON: &str = "application/json";

/// One port of a sandbox.
pub(crate) struct Http {
    lines: Arc<dyn Lines>,
    port: u16,
    idle: Mutex<Vec<Kept>>,
    gone: CancellationToken,
}

/// An open connection.
struct Kept {
    sender: SendRequest<Full<Bytes>>,
    ending: Ending,
    host: String,
    headers: Vec<(String, String)>,
}

/// What is asked.
#[derive(Clone)]
pub(crate) struct Ask {
    pub(crate) method: Method,
    /// With the query, as it travels.
    pub(crate) path: String,
    pub(crate) content_type: String,
    pub(crate) body: Bytes,
}

impl Ask {
    pub(crate) fn get(path: impl Into<String>) -> Self {
        let (method, path) = (Method::GET, path.into());
        Self { method, path, content_type: JSON.to_owned(), body: Bytes::new() }
    }
}

impl Http {
    pub(crate) fn new(lines: Arc<dyn Lines>, port: u16, gone: CancellationToken) -> Self {
        Self { lines, port, idle: Mutex::default(), gone }
    }

    /// The answer, whatever its status.
    pub(crate) async fn ask(&self, ask: &Ask) -> Result<(StatusCode, Bytes), RuntimeError> {
        let asking = async {
            // A connection that was kept may have been closed meanwhile; that says nothing of the next one.
            while let Some(kept) = self.kept() {
                if let Some(answer) = self.ask_by(kept, ask).await? {
                    return Ok(answer);
                }
            }
            let unasked = || RuntimeError::NotSent("the connection was closed at once".to_owned());
            self.ask_by(self.open().await?, ask).await?.ok_or_else(unasked)
        };
        let slow = || RuntimeError::NoAnswer(format!("no answer within {}s", ANSWER_LIMIT.as_secs()));
        let answer = timeout(ANSWER_LIMIT, asking).await.unwrap_or_else(|_| Err(slow()));
        match &answer {
            Ok((status, _)) if !is_of_a_router(*status) => {}
            // A router answers so, or not at all, where the sandbox is gone.
            Ok(_) | Err(RuntimeError::NoAnswer(_)) => self.look().await?,
            Err(_) => {}
        }
        answer
    }

    /// None: it was not asked.
    async fn ask_by(&self, mut kept: Kept, ask: &Ask) -> Result<Option<(StatusCode, Bytes)>, RuntimeError> {
        if kept.sender.ready().await.is_err() {
            return Ok(None);
        }
        let request = kept.request(ask)?;
        let response = match kept.ending.or(kept.sender.send_request(request)).await {
            Some(Ok(response)) => response,
            Some(Err(error)) if error.is_canceled() => return Ok(None),
            Some(Err(error)) => return Err(RuntimeError::NoAnswer(error.to_string())),
            None => return Err(RuntimeError::NoAnswer("the connection ended without an answer".to_owned())),
        };
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
        let body =
            body.map_err(|error| RuntimeError::NoAnswer(format!("its answer is not whole: {error}")))?;
        if head.status.is_server_error() {
            self.idle().clear();
        } else {
            self.keep(kept);
        }
        Ok(Some((head.status, body.to_bytes())))
    }

    /// Opens a connection, which finds out whether the sandbox is gone. Any other error is left to the next question.
    async fn look(&self) -> Result<(), RuntimeError> {
        match self.open().await {
            Ok(opened) => self.keep(opened),
            Err(gone @ RuntimeError::Gone(_)) => return Err(gone),
            Err(_) => {}
        }
        Ok(())
    }

    async fn open(&self) -> Result<Kept, RuntimeError> {
        let Line { stream, host, headers } = open(&*self.lines, self.port, &self.gone).await?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| unasked(&error))?;
        Ok(Kept { sender, ending: Ending::of(connection), host, headers })
    }

    fn kept(&self) -> Option<Kept> {
        self.idle().pop()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, kept: Kept) {
        let mut idle = self.idle();
        if idle.len() < MAX_IDLE && !kept.sender.is_closed() {
            idle.push(kept);
        }
    }
}

impl Kept {
    fn request(&self, ask: &Ask) -> Result<Request<Full<Bytes>>, RuntimeError> {
        let (host, prefix) = self.host.split_once('/').unwrap_or((&self.host, ""));
        let prefix = prefix.trim_end_matches('/');
        let slash = if prefix.is_empty() { "" } else { "/" };
        let request = Request::builder()
            .method(ask.method.clone())
            .uri(format!("{slash}{prefix}{}", ask.path))
            .header(header::HOST, host)
            .header(header::CONTENT_TYPE, &ask.content_type)
            .body(Full::new(ask.body.clone()));
        let mut request =
            request.map_err(|error| RuntimeError::Refused(format!("it can't be asked: {error}")))?;
        for (name, value) in &self.headers {
            let unusable = || RuntimeError::Refused(format!("{name:?} is no HTTP header that can be sent"));
            let value = HeaderValue::from_str(value).map_err(|_| unusable())?;
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| unusable())?;
            request.headers_mut().insert(name, value);
        }
        Ok(request)
    }
}

/// A connection to a port. When the sandbox is gone, this says so to all who wait.
pub(crate) async fn open(
    lines: &dyn Lines,
    port: u16,
    gone: &CancellationToken,
) -> Result<Line, RuntimeError> {
    match lines.open(port).await {
        Ok(line) => Ok(line),
        Err(DialError::Unreachable(why)) => Err(RuntimeError::NotSent(why)),
        Err(DialError::Denied(why)) => Err(RuntimeError::Refused(why)),
        Err(DialError::Gone(why)) => {
            gone.cancel();
            Err(RuntimeError::Gone(why))
        }
    }
}

fn unasked(error: &hyper::Error) -> RuntimeError {
    RuntimeError::NotSent(error.to_string())
}

/// Whether a router answers in the place of a runtime that it cannot reach.
fn is_of_a_router(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT)
}

/// The text of an answer that is a refusal, for people.
pub(crate) fn said(status: StatusCode, body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let text: String = text.chars().take(200).collect();
    format!("{status} {}", text.trim())
}
