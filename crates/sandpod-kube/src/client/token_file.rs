//! Tokens in a file that is replaced from time to time.
//!
//! kube 5.0 keeps a token for up to a minute after another has taken its place, and takes the newline at a file's end for
//! a part of it. Here the file is read with every call: it is small and on this machine.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use http::header::AUTHORIZATION;
use http::{HeaderValue, Request};
use kube::Config;

use crate::{Error, Result};

/// The token in a file, as it was last read.
#[derive(Clone)]
pub(super) struct TokenFile {
    path: PathBuf,
    last: Arc<Mutex<HeaderValue>>,
}

impl TokenFile {
    /// Removes the token file from `config`, so that kube does not read it too. As in kubectl it takes precedence over
    /// a token.
    pub(super) fn take(config: &mut Config) -> Result<Option<Self>> {
        let Some(path) = config.auth_info.token_file.take().map(PathBuf::from) else { return Ok(None) };
        config.auth_info.token = None;
        let first = read(&path).map_err(|cause| Error::TokenFile { path: path.clone(), cause })?;
        Ok(Some(Self { path, last: Arc::new(Mutex::new(first)) }))
    }

    /// Adds the current token to the request, or the last one if the file can't be read, as kubectl does.
    pub(super) fn authorize<B>(&self, mut request: Request<B>) -> Request<B> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(token) = read(&self.path) {
            *last = token;
        }
        request.headers_mut().insert(AUTHORIZATION, last.clone());
        request
    }
}

fn read(path: &Path) -> std::io::Result<HeaderValue> {
    let token = std::fs::read_to_string(path)?;
    let mut value =
        HeaderValue::try_from(format!("Bearer {}", token.trim())).map_err(std::io::Error::other)?;
    value.set_sensitive(true);
    Ok(value)
}
