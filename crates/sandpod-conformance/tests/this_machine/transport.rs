//! Transports to a guest in this process.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use sandpod_client::{ByteStream, Connection, DialError, Dialer, NetworkDialer, Options, Sandbox, Token};
use sandpod_guest::{Guest, ListenOptions};
use sandpod_testbed::proxy::FaultProxy;
use sha2::{Digest as _, Sha256};
use tokio::net::unix::pipe;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::AbortHandle;

const TOKEN: &str = "known to this process only";

/// A transport.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transport {
    /// Two pipes, like standard input and output.
    Pipes,
    UnixSocket,
    Tcp,
    WebSocket,
}

/// Breaks all open streams.
type LoseStreams = Box<dyn Fn() + Send + Sync>;

/// Returns the hash of the token, for the guest.
pub(crate) fn token_hash() -> [u8; 32] {
    Sha256::digest(TOKEN).into()
}

impl Transport {
    pub(crate) const ALL: [Self; 4] = [Self::Pipes, Self::UnixSocket, Self::Tcp, Self::WebSocket];

    /// Returns the name in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pipes => "stdio",
            Self::UnixSocket => "Unix socket",
            Self::Tcp => "TCP",
            Self::WebSocket => "WebSocket",
        }
    }

    /// Opens the transport and returns a sandbox over it.
    pub(crate) async fn reach(self, guest: Guest) -> (Sandbox, LoseStreams) {
        match self {
            Self::Pipes | Self::UnixSocket => {
                let served = Served { guest, transport: self, streams: Arc::default() };
                (sandbox(served.clone()), Box::new(move || served.lose_streams()))
            }
            Self::Tcp | Self::WebSocket => {
                let proxy = FaultProxy::start(self.listen(&guest).await).await.unwrap();
                let (address, token) = (proxy.address().to_string(), Token::new(TOKEN));
                let dialer = match self {
                    Self::WebSocket => NetworkDialer::websocket(address, token),
                    _ => NetworkDialer::tcp(address, token),
                };
                (sandbox(dialer), Box::new(move || proxy.reset_all()))
            }
        }
    }

    /// Starts the guest's listeners and returns the address of the one for this transport.
    async fn listen(self, guest: &Guest) -> SocketAddr {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let doors = ListenOptions { stream: Some(any), websocket: Some(any), ..ListenOptions::default() };
        let opened = doors.open(guest).await.unwrap();
        match self {
            Self::WebSocket => opened.websocket.unwrap(),
            _ => opened.stream.unwrap(),
        }
    }
}

fn sandbox(dialer: impl Dialer) -> Sandbox {
    Sandbox::new(Connection::new(dialer, Options::default()))
}

/// A guest in this process, and the tasks of its streams.
#[derive(Clone)]
struct Served {
    guest: Guest,
    transport: Transport,
    streams: Arc<Mutex<Vec<AbortHandle>>>,
}

impl Served {
    fn lose_streams(&self) {
        self.streams.lock().unwrap().drain(..).for_each(|stream| stream.abort());
    }

    /// Creates both ends of a stream.
    async fn pair(&self) -> io::Result<(Box<dyn ByteStream>, Box<dyn ByteStream>)> {
        if let Transport::Pipes = self.transport {
            let ((to_guest, guest_in), (guest_out, from_guest)) = (pipe::pipe()?, pipe::pipe()?);
            let ours = tokio::io::join(from_guest, to_guest);
            return Ok((Box::new(ours), Box::new(tokio::io::join(guest_in, guest_out))));
        }
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path)?;
        let (ours, accepted) = tokio::try_join!(UnixStream::connect(path), listener.accept())?;
        Ok((Box::new(ours), Box::new(accepted.0)))
    }
}

impl Dialer for Served {
    fn dial(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, DialError>> {
        async {
            let pair = self.pair().await;
            let (ours, theirs) = pair.map_err(|error| DialError::Unreachable(error.to_string()))?;
            let guest = self.guest.clone();
            let serving = tokio::spawn(async move { guest.serve_stream(theirs).await });
            self.streams.lock().unwrap().push(serving.abort_handle());
            Ok(ours)
        }
        .boxed()
    }
}
