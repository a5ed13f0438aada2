//! agent-sandbox's first runtime: HTTP on one port. It runs commands without a shell, answers when they have ended, and has
//! text for their output.

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{Method, StatusCode};
use sandpod_client::DialError;
use serde::Deserialize;
use serde_json::json;

use crate::http::{Ask, Http, JSON, said};
use crate::runtime::Runtime;
use crate::trouble::Trouble;

/// The runtime.
pub(crate) struct Legacy(Http);

#[derive(Deserialize)]
struct Active {
    status: String,
}

#[derive(Deserialize)]
struct Executed {
    stdout: String,
    stderr: String,
    exit_code: i32,
}

impl Legacy {
    pub(crate) fn new(http: Http) -> Self {
        Self(http)
    }

    /// Whether it is there.
    pub(crate) async fn probe(&self) -> Result<(), DialError> {
        let (status, body) = self.0.ask(&Ask::get("/")).await.map_err(Trouble::into_dial_error)?;
        let active = serde_json::from_slice::<Active>(&body).is_ok_and(|active| active.status == "ok");
        match status {
            StatusCode::OK if active => Ok(()),
            status if status.is_server_error() => Err(DialError::Unreachable(said(status, &body))),
            status => Err(DialError::Denied(format!("it is something else: {}", said(status, &body)))),
        }
    }

    async fn upload(&self, path: String, content: Bytes) -> Result<(), Trouble> {
        // Made anew each time: no content can have it.
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
        let ask = Ask { method: Method::POST, path: "/upload".to_owned(), content_type, body: body.freeze() };
        let (status, body) = self.0.ask(&ask).await?;
        answered(status, &body)
    }

    async fn download(&self, path: String) -> Result<Bytes, Trouble> {
        let (status, body) = self.0.ask(&Ask::get(format!("/download/{path}"))).await?;
        answered(status, &body)?;
        Ok(body)
    }

    async fn execute(&self, words: Vec<String>) -> Result<Vec<u8>, Trouble> {
        let body = json!({ "command": quoted(&words) }).to_string().into();
        let path = "/execute".to_owned();
        let ask = Ask { method: Method::POST, path, content_type: JSON.to_owned(), body };
        let (status, body) = self.0.ask(&ask).await?;
        answered(status, &body)?;
        let executed: Executed = serde_json::from_slice(&body)
            .map_err(|error| Trouble::Refused(format!("its answer is none: {error}")))?;
        if executed.exit_code != 0 {
            let (code, why) = (executed.exit_code, executed.stderr.trim());
            return Err(Trouble::Refused(format!("a script ended with {code}: {why}")));
        }
        Ok(executed.stdout.into_bytes())
    }
}

impl Runtime for Legacy {
    fn put(&self, path: String, content: Bytes) -> BoxFuture<'_, Result<(), Trouble>> {
        self.upload(path, content).boxed()
    }

    fn get(&self, path: String) -> BoxFuture<'_, Result<Bytes, Trouble>> {
        self.download(path).boxed()
    }

    fn run(&self, words: Vec<String>) -> BoxFuture<'_, Result<Vec<u8>, Trouble>> {
        self.execute(words).boxed()
    }
}

/// What a status says. A router's 5xx may come after the runtime was asked.
fn answered(status: StatusCode, body: &[u8]) -> Result<(), Trouble> {
    match status {
        status if status.is_success() => Ok(()),
        StatusCode::NOT_FOUND => Err(Trouble::Missing),
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
            Err(Trouble::Unanswered(said(status, body)))
        }
        status => Err(Trouble::Refused(said(status, body))),
    }
}

/// Words as one line that Python's `shlex.split` takes apart again.
fn quoted(words: &[String]) -> String {
    let quote = |word: &String| format!("'{}'", word.replace('\'', "'\"'\"'"));
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_as_a_shell_has_it() {
        let words = ["sh", "-c", "echo 'a b' \"$1\"", ""].map(str::to_owned);
        assert_eq!(quoted(&words), r#"'sh' '-c' 'echo '"'"'a b'"'"' "$1"' ''"#);
    }
}
