//! sandboxd's files, over HTTP.

use std::collections::BTreeMap;

use http::{Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use sandpod_protocol::v1::{FileInfo, FileKind};
use serde_json::json;
use tokio::time::Instant;
use tonic::body::Body;

use super::body::{Arriving, Content, MAX_FILE_BYTES};
use super::calls::Calls;
use super::listing;
use super::multipart::{self, Multipart};
use super::refusal::Refusal;
use super::root::{End, Root};
use super::server::{Api, decode, json};
use crate::activity::Activity;

const FILES: &str = "/v1/files/";
/// What is told of the environment begins with this, and has none of the others in its name.
const SHOWN: &str = "SANDBOX_";
const SECRET: [&str; 10] =
    ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "CRED", "KEY", "AUTH", "BEARER", "PRIVATE", "CERT"];

/// The API.
pub(super) struct Rest {
    calls: Calls,
    root: Root,
    began: Instant,
}

impl Rest {
    pub(super) fn new(calls: Calls, root: Root) -> Self {
        Self { calls, root, began: Instant::now() }
    }

    async fn get(&self, path: &str) -> Result<Response<Body>, Refusal> {
        let resolved = self.calls.resolve(&self.root, path, End::Followed).await?;
        if self.calls.stat(&resolved).await?.kind() == FileKind::Directory {
            return self.list(path, &resolved).await;
        }
        let (info, content) = self.calls.download(resolved).await?;
        Ok(described(&info, content))
    }

    async fn head(&self, path: &str) -> Result<Response<Body>, Refusal> {
        let resolved = self.calls.resolve(&self.root, path, End::Followed).await?;
        let info = self.calls.stat(&resolved).await?;
        match info.kind() {
            FileKind::Directory => Ok(Response::new(Body::empty())),
            _ => Ok(described(&info, Body::empty())),
        }
    }

    /// A link that leads nowhere is no entry.
    async fn list(&self, path: &str, resolved: &str) -> Result<Response<Body>, Refusal> {
        let entries = self.calls.list(resolved).await?.into_iter();
        let entries = entries.filter(|(_, info)| info.kind() != FileKind::Link).map(|(name, info)| {
            json!({
                "name": name,
                "size": info.size,
                "type": listing::kind(&info),
                "modified_at": listing::rfc3339(info.modified_ns.div_euclid(1_000_000_000)),
                "mode": format!("{:04o}", info.mode & 0o777),
            })
        });
        let entries: Vec<_> = entries.collect();
        let path = format!("/{}", path.trim_start_matches('/'));
        Ok(json(StatusCode::OK, &json!({ "path": path, "entries": entries })))
    }

    async fn put(&self, path: &str, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let mode = parameter(&request, "mode").map(|mode| parse_mode(&mode)).transpose()?;
        let resolved = self.calls.resolve(&self.root, path, End::Followed).await?;
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let boundary = kind.and_then(multipart::boundary);
        let mut content = Arriving::new(request.into_body(), MAX_FILE_BYTES)?;
        match boundary {
            None => self.calls.upload(resolved, mode, &mut content).await?,
            Some(boundary) => {
                let mut form = file_in(Multipart::new(content, &boundary)).await?;
                self.calls.upload(resolved, mode, &mut form).await?;
                while form.next_part().await?.is_some() {}
            }
        }
        Ok(no_content())
    }

    async fn delete(&self, path: &str, request: &Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let recursive = parameter(request, "recursive").map(|word| parse_bool(&word)).transpose()?;
        let recursive = recursive.unwrap_or(false);
        let resolved = self.calls.resolve(&self.root, path, End::Itself).await?;
        if resolved != self.calls.resolve(&self.root, "", End::Itself).await? {
            self.calls.delete(resolved, !recursive).await?;
        } else if recursive {
            // The root stays: it may be a volume's.
            for (name, _) in self.calls.list(&resolved).await? {
                self.calls.delete(format!("{resolved}/{name}"), false).await?;
            }
        } else {
            let message = "the root directory is not deleted: recursive=true deletes what is in it";
            return Err(Refusal::new(StatusCode::CONFLICT, message));
        }
        Ok(no_content())
    }
}

impl Api for Rest {
    const PASSIVE: &'static [&'static str] = &["/v1/health"];

    fn activity(&self) -> &Activity {
        self.calls.guest().activity()
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let path = request.uri().path();
        let Some(path) = path.strip_prefix(FILES).map(decode).transpose()? else {
            let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
            return match path {
                "/v1/health" if is_read => {
                    let uptime = self.began.elapsed().as_secs();
                    Ok(json(StatusCode::OK, &json!({ "status": "ok", "uptime_seconds": uptime })))
                }
                "/v1/metadata" if is_read => Ok(json(StatusCode::OK, &json!({ "env": shown_env() }))),
                _ => Err(Refusal::new(StatusCode::NOT_FOUND, "there is nothing at this path of the API")),
            };
        };
        match *request.method() {
            Method::GET => self.get(&path).await,
            Method::HEAD => self.head(&path).await,
            Method::PUT => self.put(&path, request).await,
            Method::DELETE => self.delete(&path, &request).await,
            _ => Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "files take GET, HEAD, PUT and DELETE")),
        }
    }

    fn refuse(&self, refusal: Refusal) -> Response<Body> {
        let code = match refusal.status {
            StatusCode::FORBIDDEN => "PERMISSION_DENIED",
            StatusCode::NOT_FOUND => "NOT_FOUND",
            StatusCode::CONFLICT => "CONFLICT",
            StatusCode::SERVICE_UNAVAILABLE => "UNAVAILABLE",
            status if status.is_client_error() => "INVALID_ARGUMENT",
            _ => "INTERNAL",
        };
        json(refusal.status, &json!({ "code": code, "message": refusal.message }))
    }
}

/// A file's content, with what is known of it.
fn described(info: &FileInfo, content: Body) -> Response<Body> {
    let mut response = Response::new(content);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, info.size.into());
    headers.insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/octet-stream"));
    if let Ok(modified) = listing::http_date(info).parse() {
        headers.insert(header::LAST_MODIFIED, modified);
    }
    response
}

fn no_content() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// The form at its field `file`.
async fn file_in<C: Content>(mut form: Multipart<C>) -> Result<Multipart<C>, Refusal> {
    while let Some(head) = form.next_part().await? {
        if head.name == "file" {
            return Ok(form);
        }
    }
    Err(Refusal::bad_request("the form has no field `file`"))
}

/// A parameter of the request's query.
fn parameter(request: &Request<Incoming>, name: &str) -> Option<String> {
    let parameters = request.uri().query()?.split('&').filter_map(|pair| pair.split_once('='));
    parameters.into_iter().find(|(found, _)| *found == name).and_then(|(_, value)| decode(value).ok())
}

fn parse_mode(mode: &str) -> Result<u32, Refusal> {
    let is_mode = mode.len() == 4 && mode.starts_with('0');
    let mode = u32::from_str_radix(mode, 8).ok().filter(|_| is_mode);
    mode.ok_or_else(|| Refusal::bad_request("the mode is not four octal digits that begin with 0"))
}

fn parse_bool(word: &str) -> Result<bool, Refusal> {
    match word.to_ascii_lowercase().as_str() {
        "true" | "t" | "1" => Ok(true),
        "false" | "f" | "0" => Ok(false),
        _ => Err(Refusal::bad_request("recursive is neither true nor false")),
    }
}

/// The variables that may be shown to whoever asks.
fn shown_env() -> BTreeMap<String, String> {
    let is_shown = |name: &str| name.starts_with(SHOWN) && !SECRET.iter().any(|word| name.contains(word));
    let variables = std::env::vars_os();
    let variables =
        variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    variables.filter(|(name, _)| is_shown(&name.to_uppercase())).collect()
}
