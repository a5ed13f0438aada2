//! A TCP proxy on loopback that injects network faults: delays, stalls, resets and refused connections.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

/// The faults that the proxy injects into every connection from now on.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    /// The delay of each byte, in each direction.
    delay: Duration,
    /// Whether no byte and no end of a connection is forwarded.
    stalled: bool,
    /// Whether new connections are refused.
    refusing: bool,
    /// The number of times that all connections were reset.
    resets: u64,
}

/// A proxy to one address, which ends when it is dropped.
pub struct FaultProxy {
    address: SocketAddr,
    faults: watch::Sender<Faults>,
    listener: AbortHandle,
}

impl FaultProxy {
    /// Listens on loopback and forwards to `target`.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let faults = watch::Sender::new(Faults::default());
        let subscribed = faults.subscribe();
        let accepting = tokio::spawn(accept(listener, address, target, subscribed));
        Ok(Self { address, faults, listener: accepting.abort_handle() })
    }

    /// The address on which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds `round_trip` to the round-trip time.
    pub fn set_round_trip(&self, round_trip: Duration) {
        self.faults.send_modify(|faults| faults.delay = round_trip / 2);
    }

    /// Holds all bytes back, or forwards them again.
    pub fn set_stalled(&self, stalled: bool) {
        self.faults.send_modify(|faults| faults.stalled = stalled);
    }

    /// Refuses new connections, or accepts them again. Open connections are not affected.
    pub fn set_refusing(&self, refusing: bool) {
        self.faults.send_modify(|faults| faults.refusing = refusing);
    }

    /// Resets all open connections.
    pub fn reset_all(&self) {
        self.faults.send_modify(|faults| faults.resets += 1);
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

/// Accepts connections, and closes the listening socket while connections are to be refused.
async fn accept(
    mut listener: TcpListener,
    address: SocketAddr,
    target: SocketAddr,
    mut faults: watch::Receiver<Faults>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { return };
                connections.spawn(forward(client, target, faults.clone()));
            }
            () = becomes(&mut faults, true) => {
                drop(listener);
                becomes(&mut faults, false).await;
                listener = TcpListener::bind(address).await.expect("the port is still free");
            }
        }
    }
}

/// Waits until new connections are refused, or until they are accepted.
async fn becomes(faults: &mut watch::Receiver<Faults>, refusing: bool) {
    if faults.wait_for(|faults| faults.refusing == refusing).await.is_err() {
        // The proxy was dropped, which aborts this task.
        std::future::pending::<()>().await;
    }
}

async fn forward(client: TcpStream, target: SocketAddr, mut faults: watch::Receiver<Faults>) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    let resets = faults.borrow_and_update().resets;
    for stream in [&client, &server] {
        // Dropping a socket with a linger time of zero resets the connection, as a firewall does.
        let _ = stream.set_nodelay(true);
        let _ = stream.set_zero_linger();
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let up = carry(from_client, to_server, faults.clone());
    let down = carry(from_server, to_client, faults.clone());
    tokio::select! {
        () = async { tokio::join!(up, down); } => {}
        _ = faults.wait_for(|faults| faults.resets != resets) => {}
    }
}

/// Forwards bytes in one direction, each after the delay.
async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut faults: watch::Receiver<Faults>) {
    let (queue, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(256);
    let delays = faults.clone();
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
            if faults.wait_for(|faults| !faults.stalled).await.is_err() || to.write_all(&bytes).await.is_err()
            {
                return;
            }
        }
        let _ = to.shutdown().await;
    };
    tokio::join!(read, write);
}
