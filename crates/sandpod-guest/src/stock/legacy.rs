//! The HTTP API of agent-sandbox's first runtime, and the way for our own stream through the same port.

use std::time::Duration;

use http::{Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use sandpod_protocol::limits;
use sandpod_protocol::v1::command::What;
use sandpod_protocol::v1::{Argv, Command, StartRequest};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tonic::body::Body;

use super::body::{Arriving, MAX_FILE_BYTES};
use super::calls::{Calls, Outcome};
use super::listing;
use super::multipart::{self, Multipart};
use super::refusal::Refusal;
use super::root::{End, Root};
use super::server::{Api, decode, json};
use super::{positive, words};
use crate::activity::Activity;
use crate::network::websocket;

/// What a command with all around it may have in JSON.
const MAX_JSON_BYTES: u64 = limits::MAX_MESSAGE_BYTES as u64;
/// The exit code of a command that could not be read.
const NO_COMMAND: i32 = 1;

/// The API.
pub(super) struct Legacy {
    calls: Calls,
    root: Root,
    timeout: Duration,
}

#[derive(Deserialize)]
struct Execute {
    command: String,
    timeout_seconds: Option<f64>,
}

#[derive(Default, Serialize)]
struct Executed {
    stdout: String,
    stderr: String,
    exit_code: i32,
    timed_out: bool,
}

impl Legacy {
    pub(super) fn new(calls: Calls, root: Root, timeout: Duration) -> Self {
        Self { calls, root, timeout }
    }

    async fn execute(&self, body: Incoming) -> Result<Response<Body>, Refusal> {
        let body = Arriving::new(body, MAX_JSON_BYTES)?.all().await?;
        let wanted: Execute = serde_json::from_slice(&body).map_err(|error| {
            let message = format!("the content is not {{\"command\": \"…\"}} in JSON: {error}");
            Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, message)
        })?;
        let executed = self.run(wanted).await.unwrap_or_else(|refusal| Executed {
            stderr: format!("Failed to execute command: {}", refusal.message),
            exit_code: NO_COMMAND,
            ..Executed::default()
        });
        Ok(json(StatusCode::OK, &executed))
    }

    /// Runs a command without a shell, as its clients expect: they name one where they want one.
    async fn run(&self, wanted: Execute) -> Result<Executed, Refusal> {
        let words = words::split(&wanted.command).map_err(Refusal::bad_request)?;
        let timeout = wanted.timeout_seconds.and_then(positive).unwrap_or(self.timeout);
        let command = Command {
            what: Some(What::Argv(Argv { words })),
            working_dir: self.calls.resolve(&self.root, "", End::Followed).await?,
            timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1),
            ..Command::default()
        };
        let request = StartRequest { command: Some(command), ..StartRequest::default() };
        let most = usize::try_from(limits::MAX_OUTPUT_BYTES).unwrap_or(usize::MAX);
        let mut outcome = self.calls.run(request, most).await?;
        outcome.explain();
        if outcome.exit.timed_out {
            outcome.add_line(&sandpod_text::output::timed_out(timeout.as_secs_f64()));
        }
        Ok(outcome.into())
    }

    async fn upload(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let boundary = kind.and_then(multipart::boundary).ok_or_else(|| {
            Refusal::bad_request("a file comes as multipart/form-data, in the field `file`")
        })?;
        let mut form = Multipart::new(Arriving::new(request.into_body(), MAX_FILE_BYTES)?, &boundary);
        while let Some(head) = form.next_part().await? {
            let (true, Some(name)) = (head.name == "file", head.filename) else { continue };
            let path = self.calls.resolve(&self.root, &name, End::Followed).await?;
            self.calls.upload(path, None, &mut form).await?;
            // What comes after the file is heard, so that the client can finish.
            while form.next_part().await?.is_some() {}
            let message = format!("File '{name}' uploaded successfully.");
            return Ok(json(StatusCode::OK, &json!({ "message": message })));
        }
        Err(Refusal::bad_request("the form has no field `file` with a file name"))
    }

    async fn download(&self, path: &str) -> Result<Response<Body>, Refusal> {
        let path = self.calls.resolve(&self.root, path, End::Followed).await?;
        let (info, content) = self.calls.download(path).await?;
        let mut response = Response::new(content);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_LENGTH, info.size.into());
        headers.insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/octet-stream"));
        Ok(response)
    }

    async fn list(&self, path: &str) -> Result<Response<Body>, Refusal> {
        let path = self.calls.resolve(&self.root, path, End::Followed).await?;
        let entries = self.calls.list(&path).await?.into_iter().map(|(name, info)| {
            let kind = listing::kind(&info);
            #[expect(clippy::cast_precision_loss, reason = "a clock's last digits, which nobody compares")]
            let modified = info.modified_ns as f64 / 1e9;
            json!({ "name": name, "size": info.size, "type": kind, "mod_time": modified })
        });
        Ok(json(StatusCode::OK, &entries.collect::<Vec<_>>()))
    }

    async fn exists(&self, path: &str) -> Result<Response<Body>, Refusal> {
        let found = match self.calls.resolve(&self.root, path, End::Followed).await {
            Ok(resolved) => self.calls.stat(&resolved).await,
            Err(failure) => Err(failure.into()),
        };
        let exists = match found {
            Ok(_) => true,
            Err(refusal) if refusal.is_missing() => false,
            Err(refusal) => return Err(refusal),
        };
        Ok(json(StatusCode::OK, &json!({ "path": path, "exists": exists })))
    }
}

impl Api for Legacy {
    const PASSIVE: &'static [&'static str] = &["/", websocket::PATH];

    fn activity(&self) -> &Activity {
        self.calls.guest().activity()
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let path = request.uri().path().to_owned();
        if path == websocket::PATH {
            return websocket::upgrade(request, self.calls.guest()).map_err(Refusal::bad_request);
        }
        // Decoded once. The original does it twice and so misses names that have a % in them.
        let below = |prefix| path.strip_prefix(prefix).map(decode).transpose();
        match *request.method() {
            Method::POST if path == "/execute" => return self.execute(request.into_body()).await,
            Method::POST if path == "/upload" => return self.upload(request).await,
            Method::GET if path == "/" => {
                let active = json!({ "status": "ok", "message": "Sandbox Runtime is active." });
                return Ok(json(StatusCode::OK, &active));
            }
            Method::GET => {
                if let Some(path) = below("/download/")? {
                    return self.download(&path).await.map_err(|refusal| missing(refusal, "File not found"));
                }
                if let Some(path) = below("/list/")? {
                    let listed = self.list(&path).await;
                    return listed.map_err(|refusal| missing(refusal, "Path is not a directory"));
                }
                if let Some(path) = below("/exists/")? {
                    return self.exists(&path).await;
                }
            }
            _ => {}
        }
        Err(Refusal::new(StatusCode::NOT_FOUND, "Not Found"))
    }

    fn refuse(&self, refusal: Refusal) -> Response<Body> {
        json(refusal.status, &json!({ "message": refusal.message }))
    }
}

/// What is not there, and what is of another kind, are the same to this API's clients.
fn missing(refusal: Refusal, message: &str) -> Refusal {
    match refusal.status {
        StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST => Refusal::new(StatusCode::NOT_FOUND, message),
        _ => refusal,
    }
}

impl From<Outcome> for Executed {
    fn from(outcome: Outcome) -> Self {
        let text = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            // A character that was cut is none.
            let whole = if outcome.truncated { text.trim_end_matches('\u{fffd}') } else { &text };
            whole.to_owned()
        };
        Self {
            stdout: text(&outcome.stdout),
            stderr: text(&outcome.stderr),
            exit_code: outcome.exit.exit_code,
            timed_out: outcome.exit.timed_out,
        }
    }
}
