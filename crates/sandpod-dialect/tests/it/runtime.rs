//! The runtimes: agent-sandbox's first one itself, and both as implemented by our guest.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use sandpod_client::{Binding, ByteStream, Connection, DialError, Dialer, Options, Sandbox};
use sandpod_dialect::{Connector, Dialect, HttpConnection, RuntimeKind};
use sandpod_guest::{Guest, ListenOptions, StockAddresses, StockApis};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::net::TcpStream;

use crate::stock_python::{StockPython, Version};

/// Addresses of a sandbox's ports on this machine.
#[derive(Clone)]
pub(crate) struct Ports {
    pub(crate) legacy: Option<SocketAddr>,
    pub(crate) rest: Option<SocketAddr>,
    pub(crate) grpc: Option<SocketAddr>,
    pub(crate) gone: Arc<AtomicBool>,
    pub(crate) forgetful: Arc<LossyServer>,
}

/// Loses every fourth answer with its connection while this is enabled.
#[derive(Default)]
pub(crate) struct LossyServer {
    pub(crate) active: AtomicBool,
    answers: AtomicU32,
}

impl LossyServer {
    fn loses_this_one(&self) -> bool {
        self.active.load(Ordering::SeqCst) && self.answers.fetch_add(1, Ordering::SeqCst) % 4 == 3
    }

    /// Returns a connection whose answers may be lost.
    fn through(self: Arc<Self>, stream: TcpStream) -> DuplexStream {
        let (near, far) = tokio::io::duplex(64 << 10);
        tokio::spawn(async move {
            let ((mut from, mut to), (mut asked, mut told)) = (stream.into_split(), tokio::io::split(far));
            let asking = tokio::io::copy(&mut asked, &mut to);
            let answering = async {
                let mut some = vec![0; 64 << 10];
                loop {
                    let length = from.read(&mut some).await.unwrap_or(0);
                    let lost = length == 0 || self.loses_this_one();
                    if lost || told.write_all(&some[..length]).await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                _ = asking => {}
                () = answering => {}
            }
        });
        near
    }
}

impl Connector for Ports {
    fn open(&self, port: u16) -> BoxFuture<'_, Result<HttpConnection, DialError>> {
        async move {
            if self.gone.load(Ordering::SeqCst) {
                return Err(DialError::Gone("it was deleted".to_owned()));
            }
            let address = match port {
                8888 => self.legacy,
                8080 => self.rest,
                _ => self.grpc,
            };
            let no_listener = || DialError::Denied("no listener".to_owned());
            let stream = TcpStream::connect(address.ok_or_else(no_listener)?).await;
            let stream = stream.map_err(|error| DialError::Unreachable(error.to_string()))?;
            stream.set_nodelay(true).unwrap();
            let stream = self.forgetful.clone().through(stream);
            Ok(HttpConnection { stream: Box::new(stream), host: "sandbox".to_owned(), headers: Vec::new() })
        }
        .boxed()
    }
}

/// Opens the streams of a dialect.
struct Inside(Dialect, Arc<AtomicBool>);

impl Dialer for Inside {
    fn dial(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, DialError>> {
        async {
            if self.1.load(Ordering::SeqCst) {
                return Err(DialError::Gone("it was deleted".to_owned()));
            }
            Ok(self.0.stream())
        }
        .boxed()
    }
}

/// A runtime and its directory.
pub(crate) struct Runtime {
    pub(crate) ports: Ports,
    pub(crate) dir: TempDir,
    pub(crate) stock: Option<StockPython>,
    _guest: Option<Guest>,
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Some(stock) = &mut self.stock {
            let _ = stock.process.kill();
            let _ = stock.process.wait();
        }
    }
}

impl Runtime {
    /// Starts agent-sandbox's first runtime.
    pub(crate) fn stock(version: Version) -> Self {
        let dir = TempDir::new().unwrap();
        let stock = StockPython::start(version, &dir.path().join("app"), &dir.path().join("program"));
        let legacy = Some(stock.address);
        let ports = Ports { legacy, rest: None, grpc: None, gone: Arc::default(), forgetful: Arc::default() };
        Self { ports, dir, stock: Some(stock), _guest: None }
    }

    /// Starts our guest as one of the stock runtimes.
    pub(crate) async fn guest(kind: RuntimeKind) -> Self {
        let dir = TempDir::new().unwrap();
        let guest = Guest::new(sandpod_guest::Options::new(dir.path().join("state"))).unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let stock = StockApis {
            addresses: StockAddresses { legacy: any, grpc: any, rest: any },
            base_dir: dir.path().join("app"),
            root_dir: dir.path().join("app"),
            command_timeout: Duration::from_secs(30),
        };
        let opened =
            ListenOptions { stock: Some(stock), ..ListenOptions::default() }.open(&guest).await.unwrap();
        let at = opened.stock.unwrap();
        let ports = match kind {
            RuntimeKind::Legacy => Ports {
                legacy: Some(at.legacy),
                rest: None,
                grpc: None,
                gone: Arc::default(),
                forgetful: Arc::default(),
            },
            RuntimeKind::Sandboxd => Ports {
                legacy: None,
                rest: Some(at.rest),
                grpc: Some(at.grpc),
                gone: Arc::default(),
                forgetful: Arc::default(),
            },
        };
        Self { ports, dir, stock: None, _guest: Some(guest) }
    }

    pub(crate) async fn sandbox(&self) -> (Sandbox, RuntimeKind) {
        let dialect = Dialect::find(Arc::new(self.ports.clone()), 8888).await.unwrap();
        let kind = dialect.kind();
        let inside = Inside(dialect, self.ports.gone.clone());
        (Sandbox::new(Connection::new(inside, Options::default())), kind)
    }

    /// Returns a path in the test's directory.
    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join("work dir").join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn binding(&self) -> Binding {
        Binding {
            claim: "claim".to_owned(),
            env: [("GREETING".to_owned(), "it's \"me\"\n".to_owned())].into(),
            working_dir: self.path(""),
            ..Binding::default()
        }
    }
}
