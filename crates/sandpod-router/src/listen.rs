//! Accepts connections, and lets requests in flight end when the router stops.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::headers::Origin;
use crate::proxy::{Connection, Router};
use crate::tls::{Tls, user_of};

/// The time in which a client must finish its handshake, and then have a request admitted. A connection without a request
/// is closed then, and another one takes no more requests.
const FIRST_HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The time after which a connection that takes no more requests is closed, if none was admitted. It is longer than the
/// reviews of a request.
const REFUSED_TIMEOUT: Duration = Duration::from_secs(30);
/// The time between two requests of a connection. It is longer than the usual one of load balancers, which would otherwise
/// send a request on a connection that closes. A caller that is refused gets no second request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
const MAX_HEAD_BYTES: u32 = 64 << 10;
const HTTP2_KEEPALIVE: Duration = Duration::from_secs(30);
/// A pause after a failed accept: the process may have too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// A front door.
pub struct Listener {
    router: Router,
    socket: TcpListener,
    tls: Option<Arc<Tls>>,
    connections: Arc<Semaphore>,
}

impl Listener {
    /// Binds `address`. At most `max_connections` are open at once; more wait to be accepted.
    pub async fn bind(
        router: Router,
        address: SocketAddr,
        tls: Option<Arc<Tls>>,
        max_connections: usize,
    ) -> std::io::Result<Self> {
        let socket = TcpListener::bind(address).await?;
        Ok(Self { router, socket, tls, connections: Arc::new(Semaphore::new(max_connections)) })
    }

    /// The address that it listens on.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Accepts connections until `stop` is cancelled, then returns when all requests have ended.
    pub async fn serve(self, stop: CancellationToken) {
        let connections = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                accepted = self.accept() => accepted,
                () = stop.cancelled() => break,
            };
            let (stream, peer, permit) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            let (router, tls, stop) = (self.router.clone(), self.tls.clone(), stop.clone());
            connections.spawn(serve_connection(router, stream, peer, tls, permit, stop));
        }
        drop(self.socket);
        connections.close();
        connections.wait().await;
    }

    async fn accept(&self) -> std::io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        // The semaphore is never closed.
        let permit = self.connections.clone().acquire_owned().await.map_err(std::io::Error::other)?;
        let (stream, peer) = self.socket.accept().await?;
        stream.set_nodelay(true)?;
        Ok((stream, peer, permit))
    }
}

async fn serve_connection(
    router: Router,
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<Arc<Tls>>,
    permit: OwnedSemaphorePermit,
    stop: CancellationToken,
) {
    let address = peer.ip();
    let Some(tls) = tls else {
        let connection = Connection::new(Origin { address, is_tls: false }, None, permit);
        return serve_stream(router, stream, connection, stop).await;
    };
    let handshake = TlsAcceptor::from(tls.config()).accept(stream);
    let Ok(Ok(stream)) = timeout(FIRST_HEAD_TIMEOUT, handshake).await else { return };
    let certificates = stream.get_ref().1.peer_certificates();
    let user = certificates.and_then(|certificates| user_of(certificates.first()?));
    let connection = Connection::new(Origin { address, is_tls: true }, user, permit);
    serve_stream(router, stream, connection, stop).await;
}

async fn serve_stream(
    router: Router,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    connection: Connection,
    stop: CancellationToken,
) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(HTTP2_KEEPALIVE)
        .max_header_list_size(MAX_HEAD_BYTES)
        .adaptive_window(true);
    let (first, connection) = (CancellationToken::new(), Arc::new(connection));
    let (seen, admitted) = (first.clone(), connection.admitted.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let (router, connection) = (router.clone(), connection.clone());
        seen.cancel();
        async move { Ok::<_, std::convert::Infallible>(router.handle(request, &connection).await) }
    });
    let serving = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        ended = serving.as_mut() => return note_end(ended),
        () = stop.cancelled() => {}
        () = expired(&admitted, FIRST_HEAD_TIMEOUT) => {
            if !first.is_cancelled() {
                tracing::debug!("a connection without a request was closed");
                return;
            }
        }
    }
    // A request in flight ends, and no other begins.
    serving.as_mut().graceful_shutdown();
    let limit = if first.is_cancelled() { REFUSED_TIMEOUT } else { FIRST_HEAD_TIMEOUT };
    tokio::select! {
        ended = serving => note_end(ended),
        () = expired(&admitted, limit) => tracing::debug!("a connection without an admitted request was closed"),
    }
}

/// Logs a connection that failed. Its client notices it.
fn note_end<E: std::fmt::Display>(ended: Result<(), E>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended with an error");
    }
}

/// Returns when no request has been admitted in time, and otherwise never.
async fn expired(admitted: &CancellationToken, limit: Duration) {
    if timeout(limit, admitted.cancelled()).await.is_ok() {
        std::future::pending::<()>().await;
    }
}
