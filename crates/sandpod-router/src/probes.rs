//! The ports that only the cluster reads: probes and metrics.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::proxy::Router;

/// Answers `/healthz`, `/readyz` and `/metrics` on a port, and never returns.
///
/// The router is ready when it has listed the sandboxes and is not stopping.
pub async fn serve(socket: TcpListener, router: Router, stopping: CancellationToken) {
    let answer = Arc::new(move |path: &str| match path {
        "/readyz" if stopping.is_cancelled() => text(StatusCode::SERVICE_UNAVAILABLE, "stopping"),
        "/readyz" if !router.registry().is_synced() => {
            text(StatusCode::SERVICE_UNAVAILABLE, "the sandboxes are not listed yet")
        }
        "/healthz" | "/readyz" => text(StatusCode::OK, "ok"),
        "/metrics" => text(StatusCode::OK, router.metrics().text()),
        _ => text(StatusCode::NOT_FOUND, "not found"),
    });
    loop {
        let Ok((stream, _)) = socket.accept().await else { continue };
        let answer = answer.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let response = answer(request.uri().path());
                async move { Ok::<_, Infallible>(response) }
            });
            // A probe that hangs up needs no answer.
            let _ = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}
