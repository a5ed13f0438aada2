//! The HTTP API of agent-sandbox's first runtime, and sandpod's stream through the same port.

use std::time::Duration;

use http::{Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use sandpod_protocol::limits;
use sandpod_protocol::v1::command::What;
use sandpod_protocol::v1::{Argv, Command, StartRequest};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tonic::body::Body;

use super::body::{LimitedBody, MAX_FILE_BYTES};
use super::format;
use super::guest_calls::{GuestCalls, Outcome};
use super::http_error::HttpError;
use super::multipart::{self, Multipart};
use super::root::{FinalLink, Root};
use super::server::{Api, decode, json};
use super::{positive, shlex};
use crate::activity::Activity;
use crate::network::websocket;

/// Maximum size of a command's JSON.
const MAX_JSON_BYTES: u64 = limits::MAX_MESSAGE_BYTES as u64;
/// Exit code for a command line that cannot be parsed.
const NO_COMMAND: i32 = 1;

/// The API.
pub(super) struct Legacy {
    calls: GuestCalls,
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
    pub(super) fn new(calls: GuestCalls, root: Root, timeout: Duration) -> Self {
        Self { calls, root, timeout }
    }

    async fn execute(&self, body: Incoming) -> Result<Response<Body>, HttpError> {
        let body = LimitedBody::new(body, MAX_JSON_BYTES)?.all().await?;
        let wanted: Execute = serde_json::from_slice(&body).map_err(|error| {
            let message = format!("the content is not {{\"command\": \"…\"}} in JSON: {error}");
            HttpError::new(StatusCode::UNPROCESSABLE_ENTITY, message)
        })?;
        let executed = self.run(wanted).await.unwrap_or_else(|error| Executed {
            stderr: format!("Failed to execute command: {}", error.message),
            exit_code: NO_COMMAND,
            ..Executed::default()
        });
        Ok(json(StatusCode::OK, &executed))
    }

    /// Runs a command without a shell, as the API's clients expect: they name a shell if they need one.
    async fn run(&self, wanted: Execute) -> Result<Executed, HttpError> {
        let words = shlex::split(&wanted.command).map_err(HttpError::bad_request)?;
        let timeout = wanted.timeout_seconds.and_then(positive).unwrap_or(self.timeout);
        let command = Command {
            what: Some(What::Argv(Argv { words })),
            working_dir: self.calls.resolve(&self.root, "", FinalLink::Follow).await?,
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

    async fn upload(&self, request: Request<Incoming>) -> Result<Response<Body>, HttpError> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let boundary = kind.and_then(multipart::boundary).ok_or_else(|| {
            HttpError::bad_request("a file comes as multipart/form-data, in the field `file`")
        })?;
        let mut form = Multipart::new(LimitedBody::new(request.into_body(), MAX_FILE_BYTES)?, &boundary);
        while let Some(head) = form.next_part().await? {
            let (true, Some(name)) = (head.name == "file", head.filename) else { continue };
            let path = self.calls.resolve(&self.root, &name, FinalLink::Follow).await?;
            self.calls.upload(path, None, &mut form).await?;
            // The rest of the form is read, so that the client can finish sending.
            while form.next_part().await?.is_some() {}
            let message = format!("File '{name}' uploaded successfully.");
            return Ok(json(StatusCode::OK, &json!({ "message": message })));
        }
        Err(HttpError::bad_request("the form has no field `file` with a file name"))
    }

    async fn download(&self, path: &str) -> Result<Response<Body>, HttpError> {
        let path = self.calls.resolve(&self.root, path, FinalLink::Follow).await?;
        let (info, content) = self.calls.download(path).await?;
        let mut response = Response::new(content);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_LENGTH, info.size.into());
        headers.insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/octet-stream"));
        Ok(response)
    }

    async fn list(&self, path: &str) -> Result<Response<Body>, HttpError> {
        let path = self.calls.resolve(&self.root, path, FinalLink::Follow).await?;
        let entries = self.calls.list(&path).await?.into_iter().map(|(name, info)| {
            let kind = format::kind(&info);
            #[expect(clippy::cast_precision_loss, reason = "sub-microsecond digits do not matter here")]
            let modified = info.modified_ns as f64 / 1e9;
            json!({ "name": name, "size": info.size, "type": kind, "mod_time": modified })
        });
        Ok(json(StatusCode::OK, &entries.collect::<Vec<_>>()))
    }

    async fn exists(&self, path: &str) -> Result<Response<Body>, HttpError> {
        let found = match self.calls.resolve(&self.root, path, FinalLink::Follow).await {
            Ok(resolved) => self.calls.stat(&resolved).await,
            Err(failure) => Err(failure.into()),
        };
        let exists = match found {
            Ok(_) => true,
            Err(error) if error.is_missing() => false,
            Err(error) => return Err(error),
        };
        Ok(json(StatusCode::OK, &json!({ "path": path, "exists": exists })))
    }
}

impl Api for Legacy {
    const NO_ACTIVITY: &'static [&'static str] = &["/", websocket::PATH];

    fn activity(&self) -> &Activity {
        self.calls.guest().activity()
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, HttpError> {
        let path = request.uri().path().to_owned();
        if path == websocket::PATH {
            return websocket::upgrade(request, self.calls.guest()).map_err(HttpError::bad_request);
        }
        // Decoded once. The original decodes twice and so cannot find names that contain a %.
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
                    return self.download(&path).await.map_err(|error| missing(error, "File not found"));
                }
                if let Some(path) = below("/list/")? {
                    let listed = self.list(&path).await;
                    return listed.map_err(|error| missing(error, "Path is not a directory"));
                }
                if let Some(path) = below("/exists/")? {
                    return self.exists(&path).await;
                }
            }
            _ => {}
        }
        Err(HttpError::new(StatusCode::NOT_FOUND, "Not Found"))
    }

    fn error_response(&self, error: HttpError) -> Response<Body> {
        json(error.status, &json!({ "message": error.message }))
    }
}

/// Maps missing files and files of the wrong kind to the same error, as the original does.
fn missing(error: HttpError, message: &str) -> HttpError {
    match error.status {
        StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST => HttpError::new(StatusCode::NOT_FOUND, message),
        _ => error,
    }
}

impl From<Outcome> for Executed {
    fn from(outcome: Outcome) -> Self {
        let text = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            // A character that was cut off is dropped.
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
