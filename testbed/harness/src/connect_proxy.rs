//! An HTTP proxy on loopback that opens tunnels for clients with its credentials.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// The largest head of a CONNECT request, in bytes.
const MAX_HEAD: usize = 16 << 10;

/// A proxy that answers CONNECT, and ends when it is dropped.
pub struct ConnectProxy {
    address: SocketAddr,
    tunnels: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
    listener: AbortHandle,
}

impl ConnectProxy {
    /// Listens on loopback for clients with this `Proxy-Authorization`, such as `Basic bWU6cGFzcw==`.
    pub async fn start(authorization: &str) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (tunnels, refused) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let (opened, denied) = (tunnels.clone(), refused.clone());
        let authorization: Arc<str> = authorization.into();
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (opened, denied) = (opened.clone(), denied.clone());
                let authorization = authorization.clone();
                connections.spawn(async move {
                    let count = match tunnel(client, &authorization, &opened).await {
                        Ok(()) => return,
                        Err(_) => &denied,
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        Ok(Self { address, tunnels, refused, listener: accepting.abort_handle() })
    }

    /// The address on which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of tunnels that it has opened.
    #[must_use]
    pub fn tunnels(&self) -> usize {
        self.tunnels.load(Ordering::Relaxed)
    }

    /// The number of clients that it has refused.
    #[must_use]
    pub fn refused(&self) -> usize {
        self.refused.load(Ordering::Relaxed)
    }
}

impl Drop for ConnectProxy {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

/// Opens one tunnel and carries it to its end; fails if no tunnel was opened.
async fn tunnel(mut client: TcpStream, authorization: &str, opened: &AtomicUsize) -> io::Result<()> {
    let head = read_head(&mut client).await?;
    let (target, allowed) = parse(&head, authorization);
    let Some(target) = target.filter(|_| allowed) else {
        client.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n").await?;
        return Err(io::ErrorKind::PermissionDenied.into());
    };
    let mut server = TcpStream::connect(target).await?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    opened.fetch_add(1, Ordering::Relaxed);
    let _ = copy_bidirectional(&mut client, &mut server).await; // The tunnel was opened, whatever its end.
    Ok(())
}

async fn read_head(client: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < MAX_HEAD {
        head.push(client.read_u8().await?);
    }
    String::from_utf8(head).map_err(io::Error::other)
}

/// The target of a CONNECT request, and whether its credentials are right.
fn parse<'a>(head: &'a str, authorization: &str) -> (Option<&'a str>, bool) {
    let target = head.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next());
    let given = head.lines().filter_map(|line| line.split_once(':'));
    let mut given = given.filter(|(name, _)| name.eq_ignore_ascii_case("proxy-authorization"));
    (target, given.any(|(_, value)| value.trim() == authorization))
}
