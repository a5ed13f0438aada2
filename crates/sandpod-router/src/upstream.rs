//! Connections to Pods.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::combinators::BoxBody;
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tower_service::Service;

use crate::metrics::Metrics;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Body = BoxBody<Bytes, BoxError>;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The pauses before a connection attempt is repeated. A Pod that just became ready may not listen yet.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_millis(400), Duration::from_millis(800)];
/// A Pod on a node that is down answers no more; its connections end after about this time.
const DEAD_AFTER: Duration = Duration::from_secs(60);
const KEEPALIVE: Duration = Duration::from_secs(20);
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
const MAX_IDLE_PER_POD: usize = 64;

/// Pooled connections: HTTP/1.1 for all, HTTP/2 without TLS for gRPC.
#[derive(Clone)]
pub(crate) struct Upstream {
    http1: Client<Connector, Body>,
    http2: Client<Connector, Body>,
}

impl Upstream {
    pub(crate) fn new(metrics: &Arc<Metrics>) -> Self {
        let client = |is_http2| {
            Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .timer(TokioTimer::new())
                .pool_idle_timeout(IDLE_TIMEOUT)
                .pool_max_idle_per_host(MAX_IDLE_PER_POD)
                .http2_only(is_http2)
                .http2_adaptive_window(true)
                .set_host(false)
                .build(Connector { metrics: metrics.clone() })
        };
        Self { http1: client(false), http2: client(true) }
    }

    pub(crate) async fn send(
        &self,
        request: Request<Body>,
        is_grpc: bool,
    ) -> Result<Response<Incoming>, Error> {
        if is_grpc { self.http2.request(request).await } else { self.http1.request(request).await }
    }
}

/// Connects to the address in a URI, without DNS and without a proxy.
#[derive(Clone)]
struct Connector {
    metrics: Arc<Metrics>,
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let metrics = self.metrics.clone();
        Box::pin(async move {
            let authority = uri.authority().map_or("", |authority| authority.as_str());
            let address: SocketAddr = authority.parse().map_err(io::Error::other)?;
            let started = Instant::now();
            for pause in PAUSES {
                if let Ok(stream) = connect(address).await {
                    metrics.note_connect(started.elapsed());
                    return Ok(Stream(TokioIo::new(stream)));
                }
                sleep(pause).await;
                metrics.note_retry();
            }
            connect(address).await.map(|stream| Stream(TokioIo::new(stream)))
        })
    }
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await??;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(DEAD_AFTER))?;
    Ok(stream)
}

/// A connection to a Pod.
struct Stream(TokioIo<TcpStream>);

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl hyper::rt::Write for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, buffers)
    }
}
