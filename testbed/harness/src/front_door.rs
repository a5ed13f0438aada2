//! A reverse proxy before a router, as an ingress is: with or without TLS, with or without a token.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

/// The largest head of a request, in bytes.
const MAX_HEAD: usize = 16 << 10;

/// A proxy to one HTTP server, which ends when it is dropped. Each connection carries one request.
pub struct FrontDoor {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    listener: AbortHandle,
}

#[derive(Default)]
struct State {
    /// The `Authorization` line that a request must have, if one is required.
    required: Option<String>,
    /// The heads of all requests, in lower case, in the order of their arrival.
    heads: Vec<String>,
}

impl FrontDoor {
    /// Listens on loopback and forwards to `target`.
    pub async fn start(target: SocketAddr, tls: Option<TlsAcceptor>) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let state = Arc::<Mutex<State>>::default();
        let known = state.clone();
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (tls, known) = (tls.clone(), known.clone());
                connections.spawn(async move {
                    match tls {
                        Some(tls) => pass(tls.accept(client).await?, target, &known).await,
                        None => pass(client, target, &known).await,
                    }
                });
            }
        });
        Ok(Self { address, state, listener: accepting.abort_handle() })
    }

    /// The address on which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Requires this bearer token from now on.
    pub fn demand(&self, token: &str) {
        lock(&self.state).required = Some(format!("\r\nauthorization: bearer {}\r\n", token.to_lowercase()));
    }

    /// The heads of all requests so far, in lower case.
    #[must_use]
    pub fn heads(&self) -> Vec<String> {
        lock(&self.state).heads.clone()
    }
}

impl Drop for FrontDoor {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn pass(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    target: SocketAddr,
    state: &Mutex<State>,
) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < MAX_HEAD {
        head.push(client.read_u8().await?);
    }
    let text = String::from_utf8_lossy(&head).to_lowercase();
    let is_allowed = {
        let mut state = lock(state);
        let is_allowed = state.required.as_ref().is_none_or(|required| text.contains(required));
        state.heads.push(text);
        is_allowed
    };
    if !is_allowed {
        return client.write_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n").await;
    }
    let mut server = TcpStream::connect(target).await?;
    server.set_nodelay(true)?;
    server.write_all(&head).await?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}
