//! agent-sandbox's first runtime, in its tags v0.2.1 to v0.5.6: HTTP on one port.
//!
//! It runs commands without a shell, answers when they have ended, and returns their output as text. Before v0.5.6 it handles
//! one request at a time, so it does not answer the probes of its Pod while a command runs: no script may take long.
//! `/upload` creates no directories.

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{Method, StatusCode};
use sandpod_client::DialError;
use serde::Deserialize;
use serde_json::json;

use crate::error::RuntimeError;
use crate::http::{ApiRequest, HttpClient, JSON, refusal_text};
use crate::runtime::Runtime;
use crate::script_job::FOLDER;

/// The runtime.
pub(crate) struct Legacy(HttpClient);

#[derive(Deserialize)]
struct Active {
    status: String,
}

#[derive(Deserialize)]
struct Refusal {
    message: String,
}

#[derive(Deserialize)]
struct Executed {
    stdout: String,
    stderr: String,
    exit_code: i32,
}

impl Legacy {
    pub(crate) fn new(http: HttpClient) -> Self {
        Self(http)
    }

    /// Checks that the runtime answers.
    pub(crate) async fn probe(&self) -> Result<(), DialError> {
        let (status, body) =
            self.0.send(&ApiRequest::get("/")).await.map_err(RuntimeError::into_dial_error)?;
        let active = serde_json::from_slice::<Active>(&body).is_ok_and(|active| active.status == "ok");
        match status {
            StatusCode::OK if active => Ok(()),
            status if status.is_server_error() => Err(DialError::Unreachable(refusal_text(status, &body))),
            status => {
                Err(DialError::Denied(format!("another program answers: {}", refusal_text(status, &body))))
            }
        }
    }

    /// Uploads a file, and creates [`FOLDER`] if the upload fails without it.
    async fn upload(&self, path: String, content: Bytes) -> Result<(), RuntimeError> {
        match self.upload_into_directory(&path, content.clone()).await {
            Err(RuntimeError::NotFound) => {}
            uploaded => return uploaded,
        }
        self.execute(["mkdir", "-p", FOLDER].map(str::to_owned).to_vec()).await?;
        self.upload_into_directory(&path, content).await
    }

    async fn upload_into_directory(&self, path: &str, content: Bytes) -> Result<(), RuntimeError> {
        // Random, so that no content can contain it.
        let boundary = uuid::Uuid::new_v4().simple().to_string();
        let head = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{path}\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n"
        );
        let tail = format!("\r\n--{boundary}--\r\n");
        let mut body = BytesMut::with_capacity(head.len() + content.len() + tail.len());
        body.put(head.as_bytes());
        body.put(content);
        body.put(tail.as_bytes());
        let content_type = format!("multipart/form-data; boundary={boundary}");
        let request = ApiRequest {
            method: Method::POST,
            path: "/upload".to_owned(),
            content_type,
            body: body.freeze(),
        };
        let (status, body) = self.0.send(&request).await?;
        check_status(status, &body)
    }

    async fn download(&self, path: String) -> Result<Bytes, RuntimeError> {
        let (status, body) = self.0.send(&ApiRequest::get(format!("/download/{path}"))).await?;
        check_status(status, &body)?;
        Ok(body)
    }

    async fn execute(&self, words: Vec<String>) -> Result<Vec<u8>, RuntimeError> {
        let body = json!({ "command": quoted(&words) }).to_string().into();
        let path = "/execute".to_owned();
        let request = ApiRequest { method: Method::POST, path, content_type: JSON.to_owned(), body };
        let (status, body) = self.0.send(&request).await?;
        check_status(status, &body)?;
        let executed: Executed = serde_json::from_slice(&body)
            .map_err(|error| RuntimeError::Refused(format!("invalid answer: {error}")))?;
        if executed.exit_code != 0 {
            let (code, why) = (executed.exit_code, executed.stderr.trim());
            return Err(RuntimeError::Refused(format!("a script ended with {code}: {why}")));
        }
        Ok(executed.stdout.into_bytes())
    }
}

impl Runtime for Legacy {
    fn put(&self, path: String, content: Bytes) -> BoxFuture<'_, Result<(), RuntimeError>> {
        self.upload(path, content).boxed()
    }

    fn get(&self, path: String) -> BoxFuture<'_, Result<Bytes, RuntimeError>> {
        self.download(path).boxed()
    }

    fn run(&self, words: Vec<String>) -> BoxFuture<'_, Result<Vec<u8>, RuntimeError>> {
        self.execute(words).boxed()
    }
}

/// Converts a status. The runtime's own errors have a `message`; other answers of 5xx come from a router, which may have
/// forwarded the request.
fn check_status(status: StatusCode, body: &[u8]) -> Result<(), RuntimeError> {
    let refusal = serde_json::from_slice::<Refusal>(body).map(|refusal| refusal.message);
    match (status, refusal) {
        (status, _) if status.is_success() => Ok(()),
        (StatusCode::NOT_FOUND, _) => Err(RuntimeError::NotFound),
        (StatusCode::INTERNAL_SERVER_ERROR, Ok(message)) if message.contains("No such file") => {
            Err(RuntimeError::NotFound)
        }
        (status, Err(_)) if status.is_server_error() => {
            Err(RuntimeError::NoAnswer(refusal_text(status, body)))
        }
        (status, _) => Err(RuntimeError::Refused(refusal_text(status, body))),
    }
}

/// Quotes words as one line for Python's `shlex.split`.
fn quoted(words: &[String]) -> String {
    let quote = |word: &String| format!("'{}'", word.replace('\'', "'\"'\"'"));
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_the_runtime_is_a_refusal_and_one_of_a_router_is_no_answer() {
        let internal = StatusCode::INTERNAL_SERVER_ERROR;
        let missing = br#"{"message":"File upload failed: [Errno 2] No such file or directory: '/app/a/b'"}"#;
        assert_eq!(check_status(internal, missing), Err(RuntimeError::NotFound));
        let full = br#"{"message":"File upload failed: [Errno 28] No space left on device"}"#;
        assert!(matches!(check_status(internal, full), Err(RuntimeError::Refused(_))));
        let router = br#"{"detail":"An internal error occurred in the proxy."}"#;
        assert!(matches!(check_status(internal, router), Err(RuntimeError::NoAnswer(_))));
        assert!(matches!(check_status(StatusCode::BAD_GATEWAY, b""), Err(RuntimeError::NoAnswer(_))));
        assert_eq!(check_status(StatusCode::OK, b""), Ok(()));
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        let words = ["sh", "-c", "echo 'a b' \"$1\"", ""].map(str::to_owned);
        assert_eq!(quoted(&words), r#"'sh' '-c' 'echo '"'"'a b'"'"' "$1"' ''"#);
    }
}
