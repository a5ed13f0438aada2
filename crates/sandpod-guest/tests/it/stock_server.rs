//! A guest with agent-sandbox's own APIs on loopback, and a client that sends raw requests, including invalid
//! ones.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use sandpod_guest::{Guest, ListenOptions, Options, StockAddresses, StockApis};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The guest, which ends with the test.
pub(crate) struct Server {
    pub(crate) addresses: StockAddresses,
    pub(crate) root: PathBuf,
    dir: TempDir,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let guest = Guest::new(Options::new(dir.path().join("state"))).unwrap();
        Self::of(guest, dir).await
    }

    pub(crate) async fn of(guest: Guest, dir: TempDir) -> Self {
        let root = dir.path().join("root");
        let any = "127.0.0.1:0,127.0.0.1:0,127.0.0.1:0";
        let stock = StockApis {
            addresses: any.parse().unwrap(),
            base_dir: root.clone(),
            root_dir: root.clone(),
            command_timeout: Duration::from_secs(300),
        };
        let doors = ListenOptions { stock: Some(stock), ..ListenOptions::default() };
        let addresses = doors.open(&guest).await.unwrap().stock.unwrap();
        Self { addresses, root, dir }
    }

    pub(crate) fn outside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the status and the message of an error.
    pub(crate) fn error_message(&self) -> (u16, String) {
        (self.status, self.json()["message"].as_str().unwrap().to_owned())
    }
}

/// Sends one request with its content length.
pub(crate) async fn send(address: SocketAddr, line: &str, headers: &str, body: &[u8]) -> Reply {
    let head = format!("{line} HTTP/1.1\r\nContent-Length: {}\r\n{headers}", body.len());
    raw(address, &head, body).await
}

/// Sends a head, to which only the host and the end are added, and the body.
pub(crate) async fn raw(address: SocketAddr, head: &str, body: &[u8]) -> Reply {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("{head}Host: test\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    // A guest that refuses a request need not read all of it.
    let _ = stream.write_all(body).await;
    reply(&mut stream).await
}

/// Reads a response up to the end of the connection.
pub(crate) async fn reply(stream: &mut TcpStream) -> Reply {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    // Unread data turns the end into a reset.
    while let Ok(read @ 1..) = stream.read(&mut piece).await {
        bytes.extend_from_slice(&piece[..read]);
    }
    let end = bytes.windows(4).position(|end| end == b"\r\n\r\n").expect("an answer has a head");
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Reply { status, head, body: bytes[end + 4..].to_vec() }
}

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..500 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never came that {what}");
}
