//! A TCP port, and a bounded number of those who use it.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// The connections that one port has at once; more are closed unheard.
const MAX_CONNECTIONS: usize = 64;

/// A port that is open.
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
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = self.0.accept().await else {
                    // Out of files, most likely: others end soon.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let Ok(slot) = slots.clone().try_acquire_owned() else { continue };
                // Small answers must not wait for more to come; where that can't be set they are slow.
                let _ = stream.set_nodelay(true);
                let served = serve(stream);
                tokio::spawn(async move {
                    served.await;
                    drop(slot);
                });
            }
        });
    }
}
