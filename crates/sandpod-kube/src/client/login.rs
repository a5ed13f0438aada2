//! Credentials that are renewed when the API server rejects them.
//!
//! A credential plugin need not report when its credentials expire. kube 5.0 keeps such a token for ever. As kubectl
//! does, this calls the plugin again after a 401.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response, StatusCode};
use kube::Config;
use kube::client::middleware::AuthLayer;
use kube::client::{Body, ConfigExt as _};
use tokio::sync::Mutex;
use tower::util::{BoxService, option_layer};
use tower::{BoxError, Layer, Service, ServiceExt as _};

use super::grace::copy;

/// The credentials of a client's requests. Clones share them.
#[derive(Clone)]
pub(super) struct Login(Arc<Inner>);

struct Inner {
    config: Config,
    current: Mutex<Current>,
}

#[derive(Clone)]
struct Current {
    layer: Option<Arc<AuthLayer>>,
    /// The number of logins so far.
    number: u64,
}

impl Login {
    pub(super) fn new(config: &Config) -> Result<Self, kube::Error> {
        let current = Current { layer: config.auth_layer()?.map(Arc::new), number: 1 };
        Ok(Self(Arc::new(Inner { config: config.clone(), current: Mutex::new(current) })))
    }

    fn has_plugin(&self) -> bool {
        self.0.config.auth_info.exec.is_some()
    }

    /// Calls the plugin again, unless another call has since login `number`.
    async fn renew(&self, number: u64) -> Result<Current, BoxError> {
        let mut current = self.0.current.lock().await;
        if current.number == number {
            let login = self.clone();
            // The plugin is a process, and waiting for it would block the runtime.
            let asked = tokio::task::spawn_blocking(move || login.0.config.auth_layer()).await??;
            *current = Current { layer: asked.map(Arc::new), number: number + 1 };
        }
        Ok(current.clone())
    }
}

impl<S> Layer<S> for Login {
    type Service = LoggedIn<S>;

    fn layer(&self, inner: S) -> LoggedIn<S> {
        LoggedIn { inner, login: self.clone() }
    }
}

/// A service that adds credentials to calls.
#[derive(Clone)]
pub(super) struct LoggedIn<S> {
    inner: S,
    login: Login,
}

impl<S, B> Service<Request<Body>> for LoggedIn<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // The service that is ready has to take the call, not its clone.
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        Box::pin(ask(inner, self.login.clone(), request))
    }
}

async fn ask<S, B>(inner: S, login: Login, request: Request<Body>) -> Result<Response<B>, BoxError>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    let current = login.0.current.lock().await.clone();
    let again = if login.has_plugin() { copy(&request) } else { None };
    let response = with(current.layer.as_deref(), inner.clone()).oneshot(request).await?;
    match again {
        Some(again) if response.status() == StatusCode::UNAUTHORIZED => {
            let current = login.renew(current.number).await?;
            with(current.layer.as_deref(), inner).oneshot(again).await
        }
        _ => Ok(response),
    }
}

fn with<S, B>(layer: Option<&AuthLayer>, inner: S) -> BoxService<Request<Body>, Response<B>, BoxError>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    BoxService::new(option_layer(layer).layer(inner))
}
