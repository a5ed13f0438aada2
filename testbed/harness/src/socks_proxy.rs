//! A SOCKS5 proxy on loopback that requires a password.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// The authentication method of RFC 1929, in the numbering of RFC 1928.
const PASSWORD: u8 = 2;

/// A proxy, which ends when it is dropped.
pub struct SocksProxy {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    listener: AbortHandle,
}

impl SocksProxy {
    /// Listens on loopback for clients with this name and password.
    pub async fn start(user: &'static str, password: &'static str) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let connections = Arc::<AtomicUsize>::default();
        let opened = connections.clone();
        let accepting = tokio::spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let opened = opened.clone();
                // A client with a wrong password sees only the end of its connection.
                clients.spawn(async move { drop(serve(client, (user, password), &opened).await) });
            }
        });
        Ok(Self { address, connections, listener: accepting.abort_handle() })
    }

    /// The address on which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of connections that it has opened.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for SocksProxy {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

async fn serve(mut client: TcpStream, known: (&str, &str), opened: &AtomicUsize) -> io::Result<()> {
    let methods = sized(&mut client, 1).await?;
    if !methods.contains(&PASSWORD) {
        return client.write_all(&[5, 0xff]).await;
    }
    client.write_all(&[5, PASSWORD]).await?;
    let user = sized(&mut client, 1).await?;
    let password = sized(&mut client, 0).await?;
    if (user.as_slice(), password.as_slice()) != (known.0.as_bytes(), known.1.as_bytes()) {
        return client.write_all(&[1, 1]).await;
    }
    client.write_all(&[1, 0]).await?;
    let mut server = TcpStream::connect(target(&mut client).await?).await?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    opened.fetch_add(1, Ordering::Relaxed);
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}

/// Reads a field with its length before it, after `skipped` bytes of the version.
async fn sized(client: &mut TcpStream, skipped: usize) -> io::Result<Vec<u8>> {
    for _ in 0..skipped {
        client.read_u8().await?;
    }
    let mut field = vec![0; client.read_u8().await?.into()];
    client.read_exact(&mut field).await?;
    Ok(field)
}

/// Reads the address to which a client wants to connect.
async fn target(client: &mut TcpStream) -> io::Result<String> {
    let mut head = [0; 4];
    client.read_exact(&mut head).await?;
    let host = match head[3] {
        1 => client.read_u32().await.map(|address| std::net::Ipv4Addr::from(address).to_string())?,
        3 => String::from_utf8(sized(client, 0).await?).map_err(io::Error::other)?,
        _ => return Err(io::ErrorKind::Unsupported.into()),
    };
    Ok(format!("{host}:{}", client.read_u16().await?))
}
