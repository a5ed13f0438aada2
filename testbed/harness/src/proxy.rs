//! A TCP proxy on loopback that does what networks do: delays, stalls, resets, refuses.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

/// What the proxy does to every connection from now on.
#[derive(Clone, Copy, Debug, Default)]
struct Weather {
    /// How much later each byte arrives, in each direction.
    delay: Duration,
    /// Nothing arrives, and nothing ends.
    stalled: bool,
    /// New connections are refused.
    refusing: bool,
    /// How often connections were told to end.
    cuts: u64,
}

/// A proxy to one address, until it is dropped.
pub struct FaultProxy {
    address: SocketAddr,
    weather: watch::Sender<Weather>,
    listener: AbortHandle,
}

impl FaultProxy {
    /// Listens on loopback and forwards to `target`.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let weather = watch::Sender::new(Weather::default());
        let forecast = weather.subscribe();
        let accepting = tokio::spawn(accept(listener, address, target, forecast));
        Ok(Self { address, weather, listener: accepting.abort_handle() })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds `round_trip` to the time that a byte and its answer take.
    pub fn set_round_trip(&self, round_trip: Duration) {
        self.weather.send_modify(|weather| weather.delay = round_trip / 2);
    }

    /// Holds all bytes back, or lets them go.
    pub fn set_stalled(&self, stalled: bool) {
        self.weather.send_modify(|weather| weather.stalled = stalled);
    }

    /// Refuses new connections, or takes them again. Those that there are go on.
    pub fn set_refusing(&self, refusing: bool) {
        self.weather.send_modify(|weather| weather.refusing = refusing);
    }

    /// Resets every connection there is.
    pub fn reset_all(&self) {
        self.weather.send_modify(|weather| weather.cuts += 1);
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

/// Accepts connections, and closes the socket that listens while they are to be refused.
async fn accept(
    mut listener: TcpListener,
    address: SocketAddr,
    target: SocketAddr,
    mut weather: watch::Receiver<Weather>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { return };
                connections.spawn(forward(client, target, weather.clone()));
            }
            () = becomes(&mut weather, true) => {
                drop(listener);
                becomes(&mut weather, false).await;
                listener = TcpListener::bind(address).await.expect("nobody else has taken the port");
            }
        }
    }
}

/// Waits until new connections are refused, or are not.
async fn becomes(weather: &mut watch::Receiver<Weather>, refusing: bool) {
    if weather.wait_for(|weather| weather.refusing == refusing).await.is_err() {
        // The proxy was dropped, and so ends this task.
        std::future::pending::<()>().await;
    }
}

async fn forward(client: TcpStream, target: SocketAddr, mut weather: watch::Receiver<Weather>) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    let cuts = weather.borrow_and_update().cuts;
    for stream in [&client, &server] {
        // A socket that lingers for no time is reset when it is dropped, as by a firewall.
        let _ = stream.set_nodelay(true);
        let _ = stream.set_zero_linger();
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let up = carry(from_client, to_server, weather.clone());
    let down = carry(from_server, to_client, weather.clone());
    tokio::select! {
        () = async { tokio::join!(up, down); } => {}
        _ = weather.wait_for(|weather| weather.cuts != cuts) => {}
    }
}

/// Carries bytes one way, each when it is due.
async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut weather: watch::Receiver<Weather>) {
    let (queue, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(256);
    let delays = weather.clone();
    let read = async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let arrival = Instant::now() + delays.borrow().delay;
            if queue.send((arrival, buffer[..count].to_vec())).await.is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((arrival, bytes)) = due.recv().await {
            sleep_until(arrival).await;
            if weather.wait_for(|weather| !weather.stalled).await.is_err()
                || to.write_all(&bytes).await.is_err()
            {
                return;
            }
        }
        let _ = to.shutdown().await;
    };
    tokio::join!(read, write);
}
