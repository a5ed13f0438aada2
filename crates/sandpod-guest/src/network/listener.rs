//! A TCP port with a maximum number of connections.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::task::Context;

use tokio::net::{TcpListener, TcpStream};

use crate::accept::accept_each;

/// Maximum number of connections of one port; more are closed at once.
const MAX_CONNECTIONS: usize = 64;

/// An open port.
pub(crate) struct Listener(TcpListener);

impl Listener {
    pub(crate) async fn bind(address: SocketAddr) -> io::Result<Self> {
        let bound = TcpListener::bind(address).await.map_err(|error| {
            let message =
                format!("the guest cannot listen on {address} ({error}): free the port or name another one");
            io::Error::new(error.kind(), message)
        });
        bound.map(Self)
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Serves each connection in a task of its own, until the runtime ends.
    pub(crate) fn answer<F>(self, serve: impl Fn(TcpStream) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let serve = move |stream: TcpStream| {
            // Small answers must not be delayed; if this fails they are only slower.
            let _ = stream.set_nodelay(true);
            Some(serve(stream))
        };
        let accept =
            move |context: &mut Context<'_>| self.0.poll_accept(context).map_ok(|(stream, _)| stream);
        tokio::spawn(accept_each(accept, MAX_CONNECTIONS, serve));
    }
}
