//! Memory that connections without a token can make a guest use.

use std::fs;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, future, stream};
use http_body_util::StreamBody;
use hyper::body::Frame;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tonic::Status;
use tonic::body::Body;
use tower_service::Service as _;

use crate::harness::{Client, Wire};
use crate::programs::{GUEST, children};

const TOKEN: &str = "a long and random secret";
const CONNECTIONS: usize = 16;
const HELLOS: usize = 300;
/// Memory that the flood may add; without limits it adds 70 MiB or more.
const MOST: u64 = 32 << 20;

/// A guest that listens on loopback in a process of its own.
struct Listening {
    /// The guest's process, which ends with this value.
    _unshare: Child,
    guest: i32,
    address: SocketAddr,
    _dir: TempDir,
}

impl Listening {
    /// Returns `None` if the tests may not make namespaces.
    #[expect(clippy::print_stderr, reason = "a skipped test is reported")]
    async fn start() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: namespaces need root");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let hash =
            Sha256::digest(TOKEN).iter().fold(String::new(), |hash, byte| hash + &format!("{byte:02x}"));
        let mut unshare = Command::new("unshare")
            .args(["--pid", "--fork", "--mount-proc", "--kill-child", GUEST])
            .args(["serve", "--unbound", "--listen", "127.0.0.1:0"])
            .env("SANDPOD_STATE_DIR", dir.path())
            .env("SANDPOD_TOKEN_SHA256", hash)
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut log = BufReader::new(unshare.stderr.take().unwrap()).lines();
        let line = log.next_line().await.unwrap().unwrap();
        let address = line.strip_prefix("sandpod-guest: streams with a token: ").unwrap().parse().unwrap();
        let guest = children(unshare.id().unwrap())[0].as_raw_nonzero().get();
        Some(Self { _unshare: unshare, guest, address, _dir: dir })
    }

    /// Returns the peak memory usage.
    fn peak(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.guest)).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }
}

/// A Hello of 16 KiB whose end is never sent.
fn half_sent() -> http::Request<Body> {
    let mut begun = vec![0, 0, 0, 0x40, 0];
    begun.resize(16_000, b'x');
    let begun = stream::iter([Ok::<_, Status>(Frame::data(Bytes::from(begun)))]);
    http::Request::post("http://guest/sandpod.v1.Session/Hello")
        .header("content-type", "application/grpc")
        .body(Body::new(StreamBody::new(begun.chain(stream::pending()))))
        .unwrap()
}

/// Sends half of many Hellos. The guest may close the connection meanwhile.
async fn flood(mut connection: TcpStream) {
    let mut preamble = vec![0; sandpod_protocol::PREAMBLE.len()];
    connection.read_exact(&mut preamble).await.unwrap();
    let wire = Wire::on(connection).await;
    let hellos = (0..HELLOS).map(|_| wire.clone().call(half_sent()));
    let _ = tokio::time::timeout(Duration::from_secs(3), future::join_all(hellos)).await;
}

#[tokio::test]
async fn half_sent_hellos_without_a_token_use_little_memory() {
    let Some(guest) = Listening::start().await else { return };
    let before = guest.peak();
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(guest.connect().await);
    }
    future::join_all(connections.into_iter().map(flood)).await;
    let taken = guest.peak() - before;
    assert!(taken < MOST, "the flood took {} MiB", taken >> 20);
    // The unauthenticated connections were closed, so that a client can connect again.
    let client = Client::on(guest.connect().await).await;
    client.hello_with(TOKEN).await.unwrap();
    assert_eq!(client.run("echo on").await.0, "on\n");
}
