//! Streams over the network, where a backend asks for them: over TCP, or in a WebSocket ([`websocket`]) on a port of its
//! own ([`websocket_port`]) or beside agent-sandbox's APIs. They carry the same calls as other streams, after authentication
//! with a token ([`auth`]), because the kernel cannot identify the peer.

pub(crate) mod auth;
mod listener;
pub(crate) mod websocket;
mod websocket_port;

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;

use crate::stock::server;
use crate::{Guest, stock};

pub(crate) use listener::Listener;

/// Addresses that a guest listens on besides its own socket. Default: none.
///
/// ```
/// # async fn example(guest: sandpod_guest::Guest) -> std::io::Result<()> {
/// use sandpod_guest::ListenOptions;
///
/// let listen = ListenOptions { stream: Some("127.0.0.1:0".parse().unwrap()), ..ListenOptions::default() };
/// let opened = listen.open(&guest).await?;
/// assert!(opened.stream.is_some_and(|address| address.port() > 0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct ListenOptions {
    /// For sandpod's stream over TCP.
    pub stream: Option<SocketAddr>,
    /// For sandpod's stream in a WebSocket, and nothing else.
    pub websocket: Option<SocketAddr>,
    /// For clients of agent-sandbox's own runtimes.
    pub stock: Option<stock::StockApis>,
}

/// The addresses that a guest listens on. A port that was given as 0 is the real one here.
#[derive(Clone, Debug, Default)]
pub struct ListenAddresses {
    /// For sandpod's stream over TCP.
    pub stream: Option<SocketAddr>,
    /// For sandpod's stream in a WebSocket, and nothing else.
    pub websocket: Option<SocketAddr>,
    /// For clients of agent-sandbox's own runtimes.
    pub stock: Option<stock::StockAddresses>,
}

impl ListenOptions {
    /// Binds the ports, and serves their connections until the runtime ends.
    pub async fn open(self, guest: &Guest) -> io::Result<ListenAddresses> {
        let mut opened = ListenAddresses::default();
        if let Some(address) = self.stream {
            let listener = Listener::bind(address).await?;
            opened.stream = Some(listener.address()?);
            let guest = guest.clone();
            listener.answer(move |stream| {
                let guest = guest.clone();
                // A broken stream needs no handling here: its client opens another one.
                async move { drop(guest.serve_network_stream(stream).await) }
            });
        }
        if let Some(address) = self.websocket {
            let listener = Listener::bind(address).await?;
            opened.websocket = Some(listener.address()?);
            let port = Arc::new(websocket_port::WebSocketPort::new(guest.clone()));
            listener.answer(move |stream| server::serve(stream, port.clone()));
        }
        if let Some(stock) = self.stock {
            opened.stock = Some(stock.open(guest).await?);
        }
        Ok(opened)
    }
}

impl ListenAddresses {
    /// Writes the open addresses to the container's log.
    pub(crate) fn log(&self) {
        let stock = self.stock.as_ref();
        let lines = [
            ("streams with a token", self.stream),
            ("streams with a token, as WebSockets", self.websocket),
            ("agent-sandbox's runtime API", stock.map(|stock| stock.legacy)),
            ("sandboxd's gRPC API", stock.map(|stock| stock.grpc)),
            ("sandboxd's REST API", stock.map(|stock| stock.rest)),
        ];
        for (what, address) in lines.into_iter().filter_map(|(what, address)| Some((what, address?))) {
            // Write errors are ignored.
            let _ = writeln!(io::stderr(), "sandpod-guest: {what}: {address}");
        }
    }
}
