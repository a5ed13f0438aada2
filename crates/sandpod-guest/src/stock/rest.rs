//! sandboxd's file API, over HTTP.

use std::collections::BTreeMap;

use http::{Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use sandpod_protocol::v1::{FileInfo, FileKind};
use serde_json::json;
use tokio::time::Instant;
use tonic::body::Body;

use super::body::{Content, LimitedBody, MAX_FILE_BYTES};
use super::format;
use super::guest_calls::GuestCalls;
use super::http_error::HttpError;
use super::multipart::{self, Multipart};
use super::root::{FinalLink, Root};
use super::server::{Api, decode, json};
use crate::activity::Activity;

const FILES: &str = "/v1/files/";
/// Prefix of the environment variables that are public, unless their names contain one of the words below.
const PUBLIC_PREFIX: &str = "SANDBOX_";
const SECRET: [&str; 10] =
    ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "CRED", "KEY", "AUTH", "BEARER", "PRIVATE", "CERT"];

/// The API.
pub(super) struct Rest {
    calls: GuestCalls,
    root: Root,
    began: Instant,
}

impl Rest {
    pub(super) fn new(calls: GuestCalls, root: Root) -> Self {
        Self { calls, root, began: Instant::now() }
    }

    async fn get(&self, path: &str) -> Result<Response<Body>, HttpError> {
        let resolved = self.calls.resolve(&self.root, path, FinalLink::Follow).await?;
        if self.calls.stat(&resolved).await?.kind() == FileKind::Directory {
            return self.list(path, &resolved).await;
        }
        let (info, content) = self.calls.download(resolved).await?;
        Ok(file_response(&info, content))
    }

    async fn head(&self, path: &str) -> Result<Response<Body>, HttpError> {
        let resolved = self.calls.resolve(&self.root, path, FinalLink::Follow).await?;
        let info = self.calls.stat(&resolved).await?;
        match info.kind() {
            FileKind::Directory => Ok(Response::new(Body::empty())),
            _ => Ok(file_response(&info, Body::empty())),
        }
    }

    /// Lists a directory. Broken links are not listed.
    async fn list(&self, path: &str, resolved: &str) -> Result<Response<Body>, HttpError> {
        let entries = self.calls.list(resolved).await?.into_iter();
        let entries = entries.filter(|(_, info)| info.kind() != FileKind::Link).map(|(name, info)| {
            json!({
                "name": name,
                "size": info.size,
                "type": format::kind(&info),
                "modified_at": format::rfc3339(info.modified_ns.div_euclid(1_000_000_000)),
                "mode": format!("{:04o}", info.mode & 0o777),
            })
        });
        let entries: Vec<_> = entries.collect();
        let path = format!("/{}", path.trim_start_matches('/'));
        Ok(json(StatusCode::OK, &json!({ "path": path, "entries": entries })))
    }

    async fn put(&self, path: &str, request: Request<Incoming>) -> Result<Response<Body>, HttpError> {
        let mode = parameter(&request, "mode").map(|mode| parse_mode(&mode)).transpose()?;
        let resolved = self.calls.resolve(&self.root, path, FinalLink::Follow).await?;
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let boundary = kind.and_then(multipart::boundary);
        let mut content = LimitedBody::new(request.into_body(), MAX_FILE_BYTES)?;
        match boundary {
            None => self.calls.upload(resolved, mode, &mut content).await?,
            Some(boundary) => {
                let mut form = file_field(Multipart::new(content, &boundary)).await?;
                self.calls.upload(resolved, mode, &mut form).await?;
                while form.next_part().await?.is_some() {}
            }
        }
        Ok(no_content())
    }

    async fn delete(&self, path: &str, request: &Request<Incoming>) -> Result<Response<Body>, HttpError> {
        let recursive = parameter(request, "recursive").map(|word| parse_bool(&word)).transpose()?;
        let recursive = recursive.unwrap_or(false);
        let resolved = self.calls.resolve(&self.root, path, FinalLink::Keep).await?;
        if resolved != self.calls.resolve(&self.root, "", FinalLink::Keep).await? {
            self.calls.delete(resolved, !recursive).await?;
        } else if recursive {
            // The root itself stays, because it may be a mount point.
            for (name, _) in self.calls.list(&resolved).await? {
                self.calls.delete(format!("{resolved}/{name}"), false).await?;
            }
        } else {
            let message = "the root directory is not deleted: recursive=true deletes what is in it";
            return Err(HttpError::new(StatusCode::CONFLICT, message));
        }
        Ok(no_content())
    }
}

impl Api for Rest {
    const NO_ACTIVITY: &'static [&'static str] = &["/v1/health"];

    fn activity(&self) -> &Activity {
        self.calls.guest().activity()
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, HttpError> {
        let path = request.uri().path();
        let Some(path) = path.strip_prefix(FILES).map(decode).transpose()? else {
            let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
            return match path {
                "/v1/health" if is_read => {
                    let uptime = self.began.elapsed().as_secs();
                    Ok(json(StatusCode::OK, &json!({ "status": "ok", "uptime_seconds": uptime })))
                }
                "/v1/metadata" if is_read => Ok(json(StatusCode::OK, &json!({ "env": public_env() }))),
                _ => Err(HttpError::new(StatusCode::NOT_FOUND, "there is nothing at this path of the API")),
            };
        };
        match *request.method() {
            Method::GET => self.get(&path).await,
            Method::HEAD => self.head(&path).await,
            Method::PUT => self.put(&path, request).await,
            Method::DELETE => self.delete(&path, &request).await,
            _ => Err(HttpError::new(StatusCode::METHOD_NOT_ALLOWED, "files take GET, HEAD, PUT and DELETE")),
        }
    }

    fn error_response(&self, error: HttpError) -> Response<Body> {
        let code = match error.status {
            StatusCode::FORBIDDEN => "PERMISSION_DENIED",
            StatusCode::NOT_FOUND => "NOT_FOUND",
            StatusCode::CONFLICT => "CONFLICT",
            StatusCode::SERVICE_UNAVAILABLE => "UNAVAILABLE",
            status if status.is_client_error() => "INVALID_ARGUMENT",
            _ => "INTERNAL",
        };
        json(error.status, &json!({ "code": code, "message": error.message }))
    }
}

/// Returns a file's content with headers for its metadata.
fn file_response(info: &FileInfo, content: Body) -> Response<Body> {
    let mut response = Response::new(content);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, info.size.into());
    headers.insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/octet-stream"));
    if let Ok(modified) = format::http_date(info).parse() {
        headers.insert(header::LAST_MODIFIED, modified);
    }
    response
}

fn no_content() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// Advances the form to its field `file`.
async fn file_field<C: Content>(mut form: Multipart<C>) -> Result<Multipart<C>, HttpError> {
    while let Some(head) = form.next_part().await? {
        if head.name == "file" {
            return Ok(form);
        }
    }
    Err(HttpError::bad_request("the form has no field `file`"))
}

/// Returns a parameter of the request's query.
fn parameter(request: &Request<Incoming>, name: &str) -> Option<String> {
    let parameters = request.uri().query()?.split('&').filter_map(|pair| pair.split_once('='));
    parameters.into_iter().find(|(found, _)| *found == name).and_then(|(_, value)| decode(value).ok())
}

fn parse_mode(mode: &str) -> Result<u32, HttpError> {
    let is_mode = mode.len() == 4 && mode.starts_with('0');
    let mode = u32::from_str_radix(mode, 8).ok().filter(|_| is_mode);
    mode.ok_or_else(|| HttpError::bad_request("the mode is not four octal digits that begin with 0"))
}

fn parse_bool(word: &str) -> Result<bool, HttpError> {
    match word.to_ascii_lowercase().as_str() {
        "true" | "t" | "1" => Ok(true),
        "false" | "f" | "0" => Ok(false),
        _ => Err(HttpError::bad_request("recursive is neither true nor false")),
    }
}

/// Returns the public environment variables.
fn public_env() -> BTreeMap<String, String> {
    let is_public =
        |name: &str| name.starts_with(PUBLIC_PREFIX) && !SECRET.iter().any(|word| name.contains(word));
    let variables = std::env::vars_os();
    let variables =
        variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    variables.filter(|(name, _)| is_public(&name.to_uppercase())).collect()
}
