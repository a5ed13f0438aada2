//! A router in this process, in front of servers of this process.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use sandpod_router::access::Access;
use sandpod_router::{Endpoint, Listener, Options, Registry, Router, SandboxRef};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub(crate) type Body = BoxBody<Bytes, Infallible>;
pub(crate) const SOON: Duration = Duration::from_secs(60);
pub(crate) const SECRET: &[u8] = b"a secret of thirty-two bytes or so";

/// A router and the sandbox `agents/box` behind it.
pub(crate) struct Stage {
    pub(crate) router: Router,
    pub(crate) front: SocketAddr,
    pub(crate) sandbox: SocketAddr,
    pub(crate) gone: CancellationToken,
    pub(crate) stop: CancellationToken,
    pub(crate) serving: JoinHandle<()>,
}

impl Stage {
    pub(crate) async fn new(access: Access, options: Options) -> Self {
        let sandbox = serve_sandbox().await;
        let registry = Arc::new(Registry::default());
        registry.replace_pods(&[]);
        registry.replace_sandboxes(Vec::new());
        let gone = CancellationToken::new();
        let endpoint = Endpoint { address: sandbox.ip(), uid: "u1".to_owned(), gone: gone.clone() };
        registry.insert(&SandboxRef::new("agents", "box"), endpoint);
        let router = Router::new(registry, access, options, Arc::default());
        let listener = Listener::bind(router.clone(), ([127, 0, 0, 1], 0).into(), None, 2000).await.unwrap();
        let (front, stop) = (listener.address().unwrap(), CancellationToken::new());
        let serving = tokio::spawn(listener.serve(stop.clone()));
        Self { router, front, sandbox, gone, stop, serving }
    }

    pub(crate) async fn open() -> Self {
        Self::open_with(Options::default()).await
    }

    /// A router that needs no credential.
    pub(crate) async fn open_with(options: Options) -> Self {
        Self::new(Access { is_open: true, ..Access::default() }, options).await
    }

    pub(crate) fn request(&self, path: &str) -> http::request::Builder {
        Request::builder()
            .uri(format!("http://{}{path}", self.front))
            .header("x-sandbox-id", "box")
            .header("x-sandbox-namespace", "agents")
            .header("x-sandbox-port", self.sandbox.port().to_string())
    }

    pub(crate) async fn get(&self, path: &str) -> (StatusCode, String) {
        send(self.request(path).body(Full::default()).unwrap()).await
    }
}

/// Sends a request, and returns the status and the body of the answer.
pub(crate) async fn send(request: Request<Full<Bytes>>) -> (StatusCode, String) {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let response = timeout(SOON, client.request(request)).await.expect("an answer").unwrap();
    let status = response.status();
    let body = timeout(SOON, response.collect()).await.expect("a whole answer").unwrap().to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

pub(crate) fn text(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).boxed()
}

/// A program in a sandbox that answers by path.
pub(crate) async fn serve_sandbox() -> SocketAddr {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = socket.accept().await {
            let service = service_fn(|request| async { Ok::<_, Infallible>(answer(request).await) });
            tokio::spawn(async move {
                Builder::new(TokioExecutor::new())
                    .serve_connection_with_upgrades(TokioIo::new(stream), service)
                    .await
                    .ok();
            });
        }
    });
    address
}

pub(crate) async fn answer(mut request: Request<Incoming>) -> Response<Body> {
    match request.uri().path() {
        "/sleep" => {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Response::new(text("slept"))
        }
        "/hang" => std::future::pending().await,
        "/ticks" => {
            let (sender, mut receiver) = mpsc::channel(1);
            tokio::spawn(async move {
                for tick in 0.. {
                    if sender.send(format!("tick {tick}\n")).await.is_err() {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            });
            let frames = futures::stream::poll_fn(move |context| {
                receiver.poll_recv(context).map(|tick| tick.map(|tick| Ok(Frame::data(tick.into()))))
            });
            Response::new(StreamBody::new(frames).boxed())
        }
        "/die" => {
            let first = futures::stream::iter([Ok(Frame::data(Bytes::from_static(b"begun")))]);
            let end = futures::stream::once(async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                panic!("the program in the sandbox ends")
            });
            Response::new(StreamBody::new(futures::StreamExt::chain(first, end)).boxed())
        }
        "/upload" => {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            Response::new(text(body.len().to_string()))
        }
        "/echo" if request.headers().contains_key("upgrade") => {
            let switch = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let mut stream = TokioIo::new(switch.await.unwrap());
                let mut bytes = [0; 4];
                while stream.read_exact(&mut bytes).await.is_ok() && stream.write_all(&bytes).await.is_ok() {}
            });
            let mut response = Response::new(text(""));
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response.headers_mut().insert("connection", "upgrade".parse().unwrap());
            response.headers_mut().insert("upgrade", "echo".parse().unwrap());
            response
        }
        _ => {
            let headers =
                request.headers().iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
            let lines: Vec<_> = [format!("{:?} {} {}", request.version(), request.method(), request.uri())]
                .into_iter()
                .chain(headers)
                .collect();
            Response::new(text(lines.join("\n")))
        }
    }
}

/// Sends a request without a body, and returns the status and the headers of the answer.
pub(crate) async fn send_for_head(request: http::request::Builder) -> (StatusCode, http::HeaderMap) {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let request = request.body(Full::<Bytes>::default()).unwrap();
    let response = timeout(SOON, client.request(request)).await.expect("an answer").unwrap();
    (response.status(), response.headers().clone())
}

/// Opens `/echo` by hand.
pub(crate) async fn open_echo(stage: &Stage) -> TcpStream {
    open_echo_with(stage, "").await
}

/// Opens `/echo` with further lines in the head.
pub(crate) async fn open_echo_with(stage: &Stage, lines: &str) -> TcpStream {
    let mut stream = TcpStream::connect(stage.front).await.unwrap();
    let head = format!(
        "GET /echo HTTP/1.1\r\nHost: front\r\nX-Sandbox-ID: box\r\nX-Sandbox-Namespace: agents\r\n\
         X-Sandbox-Port: {}\r\n{lines}Connection: Upgrade\r\nUpgrade: echo\r\n\r\n",
        stage.sandbox.port()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(timeout(SOON, stream.read_u8()).await.expect("a head").unwrap());
    }
    let answer = String::from_utf8_lossy(&answer).to_lowercase();
    assert!(answer.starts_with("http/1.1 101") && answer.contains("upgrade: echo"), "{answer}");
    stream
}

pub(crate) async fn echo(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 4];
    let exchange =
        async { stream.write_all(b"ping").await.is_ok() && stream.read_exact(&mut bytes).await.is_ok() };
    timeout(SOON, exchange).await.expect("an echo or an end") && bytes == *b"ping"
}

pub(crate) async fn ends(mut stream: TcpStream) {
    let end = timeout(SOON, stream.read_u8()).await.expect("the stream ends");
    assert!(end.is_err(), "the stream has an end, and no byte: {end:?}");
}

/// Sends bytes as they are, and returns all that the router answers until it closes the connection.
pub(crate) async fn send_raw(stage: &Stage, head: &str, rest: &str) -> String {
    let mut stream = TcpStream::connect(stage.front).await.unwrap();
    let request = format!(
        "POST /upload HTTP/1.1\r\nHost: front\r\nX-Sandbox-ID: box\r\nX-Sandbox-Namespace: agents\r\n\
         X-Sandbox-Port: {}\r\n{head}\r\n\r\n{rest}",
        stage.sandbox.port()
    );
    let mut answers = Vec::new();
    // A router that closes early may reset the connection.
    let _ = stream.write_all(request.as_bytes()).await;
    let _ = timeout(SOON, stream.read_to_end(&mut answers)).await.expect("the router closes the connection");
    String::from_utf8_lossy(&answers).into_owned()
}
