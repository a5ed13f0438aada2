//! Streams that come over the network, where a backend asks for them: by TCP, or as a WebSocket
//! ([`websocket`]), on a port of its own ([`door`]) or beside agent-sandbox's APIs. What they carry is what any other stream does, behind a [`gate`] that only a token
//! opens: no kernel says who is at the other end.

mod door;
pub(crate) mod gate;
mod listener;
pub(crate) mod websocket;

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;

use crate::stock::server;
use crate::{Guest, stock};

pub(crate) use listener::Listener;

/// What a guest listens on besides its own socket. By default nothing.
///
/// ```
/// # async fn example(guest: sandpod_guest::Guest) -> std::io::Result<()> {
/// use sandpod_guest::Doors;
///
/// let doors = Doors { stream: Some("127.0.0.1:0".parse().unwrap()), ..Doors::default() };
/// let opened = doors.open(&guest).await?;
/// assert!(opened.stream.is_some_and(|address| address.port() > 0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Doors {
    /// For our own stream over TCP.
    pub stream: Option<SocketAddr>,
    /// For our own stream as a WebSocket, and nothing else.
    pub websocket: Option<SocketAddr>,
    /// For clients of agent-sandbox's own runtimes.
    pub stock: Option<stock::Stock>,
}

/// Where the doors are: a port that was asked for as 0 is a real one here.
#[derive(Clone, Debug, Default)]
pub struct Opened {
    /// For our own stream over TCP.
    pub stream: Option<SocketAddr>,
    /// For our own stream as a WebSocket, and nothing else.
    pub websocket: Option<SocketAddr>,
    /// For clients of agent-sandbox's own runtimes.
    pub stock: Option<stock::Addresses>,
}

impl Doors {
    /// Listens, and answers until the runtime ends.
    pub async fn open(self, guest: &Guest) -> io::Result<Opened> {
        let mut opened = Opened::default();
        if let Some(address) = self.stream {
            let listener = Listener::bind(address).await?;
            opened.stream = Some(listener.address()?);
            let guest = guest.clone();
            listener.answer(move |stream| {
                let guest = guest.clone();
                // A stream that breaks is its client's matter: it opens another one.
                async move { drop(guest.serve_network_stream(stream).await) }
            });
        }
        if let Some(address) = self.websocket {
            let listener = Listener::bind(address).await?;
            opened.websocket = Some(listener.address()?);
            let door = Arc::new(door::Door::new(guest.clone()));
            listener.answer(move |stream| server::serve(stream, door.clone()));
        }
        if let Some(stock) = self.stock {
            opened.stock = Some(stock.open(guest).await?);
        }
        Ok(opened)
    }
}

impl Opened {
    /// Says in the container's log what is open, for those who have to find or close it.
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
            // Without a log there is nobody to tell.
            let _ = writeln!(io::stderr(), "sandpod-guest: {what}: {address}");
        }
    }
}
