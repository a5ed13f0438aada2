//! Streams over TCP, plain or in a WebSocket, without TLS or proxies.

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::net::TcpStream;

use super::{ByteStream, DialError, Dialer, Token, websocket};

/// Opens streams to a guest that listens on the network.
///
/// ```no_run
/// use sandpod_client::{Connection, NetworkDialer, Options, Sandbox, Token};
///
/// let dialer = NetworkDialer::tcp("10.0.0.7:7777", Token::new("long and random"));
/// let sandbox = Sandbox::new(Connection::new(dialer, Options::default()));
/// ```
#[derive(Clone, Debug)]
pub struct NetworkDialer {
    address: String,
    token: Token,
    in_websocket: bool,
}

impl NetworkDialer {
    /// Dials the guest at `host:port` that was started with `--listen`.
    pub fn tcp(address: impl Into<String>, token: Token) -> Self {
        Self { address: address.into(), token, in_websocket: false }
    }

    /// Dials a guest that was started with `--websocket`, or with `--stock-apis` at the address of its runtime API.
    pub fn websocket(address: impl Into<String>, token: Token) -> Self {
        Self { address: address.into(), token, in_websocket: true }
    }

    async fn connect(&self) -> Result<Box<dyn ByteStream>, DialError> {
        let address = &self.address;
        let stream = TcpStream::connect(address).await.map_err(|error| {
            DialError::Unreachable(format!("no connection to the guest at {address}: {error}"))
        })?;
        // Avoids delays of small calls. Without it calls are only slower.
        let _ = stream.set_nodelay(true);
        if self.in_websocket { websocket(stream, address, &[]).await } else { Ok(Box::new(stream)) }
    }
}

impl Dialer for NetworkDialer {
    fn dial(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, DialError>> {
        self.connect().boxed()
    }

    fn tokens(&self) -> Vec<Token> {
        vec![self.token.clone()]
    }
}
