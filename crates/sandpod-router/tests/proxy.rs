//! A router in this process, in front of servers of this process.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

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
use sandpod_router::access::scoped_token::Keys;
use sandpod_router::{Endpoint, Limits, Listener, Options, Registry, Router, TunnelLimits};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

type Body = BoxBody<Bytes, Infallible>;
const SOON: Duration = Duration::from_secs(20);
const SECRET: &[u8] = b"a secret of thirty-two bytes or so";

/// A router and the sandbox `agents/box` behind it.
struct Stage {
    router: Router,
    front: SocketAddr,
    sandbox: SocketAddr,
    gone: CancellationToken,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl Stage {
    async fn new(access: Access, options: Options) -> Self {
        let sandbox = serve_sandbox().await;
        let registry = Arc::new(Registry::default());
        registry.replace(&[]);
        let gone = CancellationToken::new();
        let endpoint = Endpoint { address: sandbox.ip(), uid: "u1".to_owned(), gone: gone.clone() };
        registry.insert("agents", "box", endpoint);
        let router = Router::new(registry, access, options);
        let listener = Listener::bind(router.clone(), ([127, 0, 0, 1], 0).into(), None, 1000).await.unwrap();
        let (front, stop) = (listener.address().unwrap(), CancellationToken::new());
        let serving = tokio::spawn(listener.serve(stop.clone()));
        Self { router, front, sandbox, gone, stop, serving }
    }

    async fn open() -> Self {
        Self::new(Access { is_open: true, ..Access::default() }, Options::default()).await
    }

    fn request(&self, path: &str) -> http::request::Builder {
        Request::builder()
            .uri(format!("http://{}{path}", self.front))
            .header("x-sandbox-id", "box")
            .header("x-sandbox-namespace", "agents")
            .header("x-sandbox-port", self.sandbox.port().to_string())
    }

    async fn get(&self, path: &str) -> (StatusCode, String) {
        send(self.request(path).body(Full::default()).unwrap()).await
    }
}

/// Sends a request, and returns the status and the body of the answer.
async fn send(request: Request<Full<Bytes>>) -> (StatusCode, String) {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let response = timeout(SOON, client.request(request)).await.expect("an answer").unwrap();
    let status = response.status();
    let body = timeout(SOON, response.collect()).await.expect("a whole answer").unwrap().to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

fn text(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).boxed()
}

/// A program in a sandbox that answers by path.
async fn serve_sandbox() -> SocketAddr {
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

async fn answer(mut request: Request<Incoming>) -> Response<Body> {
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

/// Opens `/echo` by hand.
async fn open_echo(stage: &Stage) -> TcpStream {
    let mut stream = TcpStream::connect(stage.front).await.unwrap();
    let head = format!(
        "GET /echo HTTP/1.1\r\nHost: front\r\nX-Sandbox-ID: box\r\nX-Sandbox-Namespace: agents\r\n\
         X-Sandbox-Port: {}\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n",
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

async fn echo(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 4];
    let exchange =
        async { stream.write_all(b"ping").await.is_ok() && stream.read_exact(&mut bytes).await.is_ok() };
    timeout(SOON, exchange).await.expect("an echo or an end") && bytes == *b"ping"
}

async fn ends(mut stream: TcpStream) {
    let end = timeout(SOON, stream.read_u8()).await.expect("the stream ends");
    assert!(end.is_err(), "the stream has an end, and no byte: {end:?}");
}

#[tokio::test]
async fn path_and_query_arrive_as_the_caller_wrote_them() {
    let stage = Stage::open().await;
    let (status, body) = stage.get("/a%2Fb/%2E%2E/c?q=%20&r=a+b").await;
    assert_eq!(status, StatusCode::OK);
    assert!(body.starts_with("HTTP/1.1 GET /a%2Fb/%2E%2E/c?q=%20&r=a+b\n"), "{body}");
}

#[tokio::test]
async fn the_sandbox_sees_neither_the_credential_nor_the_contract() {
    let stage = Stage::open().await;
    let request = stage.request("/").header("authorization", "Bearer secret").header("accept", "*/*");
    let (_, body) = send(request.body(Full::default()).unwrap()).await;
    assert!(!body.contains("secret") && !body.contains("x-sandbox"), "{body}");
    assert!(body.contains("accept: */*") && body.contains("x-forwarded-for: 127.0.0.1"), "{body}");
}

#[tokio::test]
async fn every_method_is_forwarded() {
    let stage = Stage::open().await;
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"] {
        let request = stage.request("/any").method(method).body(Full::default()).unwrap();
        let (status, body) = send(request).await;
        assert!(
            status.is_success() && body.contains(&format!(" {method} /any")),
            "{method}: {status} {body}"
        );
    }
    let head = stage.request("/any").method("HEAD").body(Full::default()).unwrap();
    assert_eq!(send(head).await, (StatusCode::OK, String::new()));
}

#[tokio::test]
async fn an_answer_streams_while_it_is_made() {
    let stage = Stage::open().await;
    let client = Client::builder(TokioExecutor::new()).build_http();
    let request = stage.request("/ticks").body(Full::<Bytes>::default()).unwrap();
    let mut body = client.request(request).await.unwrap().into_body();
    for tick in 0..3 {
        let frame = timeout(SOON, body.frame()).await.expect("a tick").unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), format!("tick {tick}\n"));
    }
}

#[tokio::test]
async fn an_answer_may_take_long_unless_the_caller_sets_a_timeout() {
    let stage = Stage::open().await;
    assert_eq!(stage.get("/sleep").await, (StatusCode::OK, "slept".to_owned()));
    let request = stage.request("/hang").header("x-sandbox-timeout", "0.2").body(Full::default()).unwrap();
    let (status, body) = send(request).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    assert!(body.contains(r#""reason":"timeout""#), "{body}");
}

#[tokio::test]
async fn a_request_to_a_pod_that_goes_away_ends_at_once() {
    let stage = Stage::open().await;
    let gone = stage.gone.clone();
    let (answer, ()) = tokio::join!(stage.get("/hang"), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        gone.cancel();
    });
    assert_eq!(answer.0, StatusCode::BAD_GATEWAY);
    assert!(answer.1.contains("Could not connect to the backend sandbox: box"), "{}", answer.1);
    assert!(answer.1.contains(r#""reason":"connection-lost""#), "{}", answer.1);
}

#[tokio::test]
async fn an_unknown_sandbox_and_a_closed_port_have_the_original_sentence() {
    let stage = Stage::open().await;
    let unknown = stage.request("/").header("x-sandbox-uid", "another").body(Full::default()).unwrap();
    let (status, body) = send(unknown).await;
    assert_eq!((status, body.contains("sandbox-not-found")), (StatusCode::BAD_GATEWAY, true), "{body}");

    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = socket.local_addr().unwrap().port().to_string();
    drop(socket);
    let mut request = stage.request("/").body(Full::default()).unwrap();
    request.headers_mut().insert("x-sandbox-port", closed.parse().unwrap());
    let (status, body) = send(request).await;
    assert_eq!((status, body.contains("connect-failed")), (StatusCode::BAD_GATEWAY, true), "{body}");
}

#[tokio::test]
async fn a_tunnel_passes_bytes_until_its_pod_is_gone() {
    let stage = Stage::open().await;
    let mut stream = open_echo(&stage).await;
    assert!(echo(&mut stream).await && echo(&mut stream).await);
    stage.gone.cancel();
    ends(stream).await;
}

#[tokio::test]
async fn an_idle_tunnel_ends_and_a_used_one_does_not() {
    let idle = Duration::from_millis(400);
    let tunnels = TunnelLimits { idle, ..TunnelLimits::default() };
    let stage =
        Stage::new(Access { is_open: true, ..Access::default() }, Options { tunnels, ..Options::default() })
            .await;
    let mut used = open_echo(&stage).await;
    let unused = open_echo(&stage).await;
    for _ in 0..10 {
        assert!(echo(&mut used).await);
        tokio::time::sleep(idle / 4).await;
    }
    ends(unused).await;
}

#[tokio::test]
async fn requests_in_flight_end_when_the_router_stops() {
    let stage = Stage::open().await;
    let mut tunnel = open_echo(&stage).await;
    let stop = stage.stop.clone();
    let (answer, ()) = tokio::join!(stage.get("/sleep"), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        stop.cancel();
    });
    assert_eq!(answer, (StatusCode::OK, "slept".to_owned()));
    timeout(SOON, stage.serving).await.expect("the listener returns").unwrap();
    assert!(TcpStream::connect(stage.front).await.is_err(), "new connections go elsewhere");
    assert!(echo(&mut tunnel).await, "an open tunnel goes on");
    stage.router.end_tunnels();
    ends(tunnel).await;
    timeout(SOON, stage.router.drained()).await.expect("nothing is left");
}

#[tokio::test]
async fn more_requests_than_the_limit_are_refused_and_later_ones_pass() {
    let limits = Limits { per_sandbox: 2, ..Limits::default() };
    let options = Options { limits, ..Options::default() };
    let stage = Stage::new(Access { is_open: true, ..Access::default() }, options).await;
    let (first, second) = (open_echo(&stage).await, open_echo(&stage).await);
    assert_eq!(stage.get("/").await.0, StatusCode::TOO_MANY_REQUESTS);
    drop((first, second));
    let freed = async { while stage.get("/").await.0 != StatusCode::OK {} };
    timeout(SOON, freed).await.expect("a closed tunnel no longer counts");
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_and_one_below_arrives() {
    let limits = Limits { body_bytes: 1 << 20, ..Limits::default() };
    let options = Options { limits, ..Options::default() };
    let stage = Stage::new(Access { is_open: true, ..Access::default() }, options).await;
    for (size, expected) in [(1 << 20, StatusCode::OK), ((1 << 20) + 1, StatusCode::PAYLOAD_TOO_LARGE)] {
        let body = Full::new(Bytes::from(vec![b'x'; size]));
        let (status, text) = send(stage.request("/upload").method("POST").body(body).unwrap()).await;
        assert_eq!(status, expected, "{text}");
    }
}

#[tokio::test]
async fn a_scoped_token_opens_its_sandbox_and_no_other() {
    let keys = Keys::new(&[SECRET]).unwrap();
    let access = Access { keys: Some(keys.clone()), ..Access::default() };
    let stage = Stage::new(access, Options::default()).await;
    let minute = Duration::from_secs(60);
    let cases = [
        (None, StatusCode::UNAUTHORIZED),
        (Some("nonsense".to_owned()), StatusCode::UNAUTHORIZED),
        (Some(keys.sign("agents", "box", Duration::ZERO)), StatusCode::UNAUTHORIZED),
        (Some(keys.sign("agents", "other", minute)), StatusCode::FORBIDDEN),
        (Some(keys.sign("others", "box", minute)), StatusCode::FORBIDDEN),
        (Some(keys.sign("agents", "box", minute)), StatusCode::OK),
    ];
    for (token, expected) in cases {
        let mut request = stage.request("/");
        if let Some(token) = &token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        assert_eq!(send(request.body(Full::default()).unwrap()).await.0, expected, "{token:?}");
    }
    let named = stage.request("/").header("x-sandbox-pod-ip", "10.0.0.1");
    let named = named.header("authorization", format!("Bearer {}", keys.sign("agents", "box", minute)));
    assert_eq!(send(named.body(Full::default()).unwrap()).await.0, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn a_request_in_the_body_of_another_does_not_reach_the_sandbox() {
    let stage = Stage::open().await;
    let mut stream = TcpStream::connect(stage.front).await.unwrap();
    // By its length the body has a second request; by its chunks it is empty, and the second request is the router's.
    let smuggled = format!(
        "POST /upload HTTP/1.1\r\nHost: front\r\nX-Sandbox-ID: box\r\nX-Sandbox-Namespace: agents\r\n\
         X-Sandbox-Port: {}\r\nContent-Length: 43\r\nTransfer-Encoding: chunked\r\n\r\n\
         0\r\n\r\nGET /evil HTTP/1.1\r\nConnection: close\r\n\r\n",
        stage.sandbox.port()
    );
    stream.write_all(smuggled.as_bytes()).await.unwrap();
    let mut answers = String::new();
    timeout(SOON, stream.read_to_string(&mut answers)).await.expect("two answers").unwrap();
    let (first, second) = answers.split_once("HTTP/1.1 400").expect("the second request names no sandbox");
    assert!(first.starts_with("HTTP/1.1 200") && first.ends_with("\r\n\r\n0"), "{first}");
    assert!(second.contains("X-Sandbox-ID header is required."), "{second}");
}

#[tokio::test]
async fn probes_of_load_balancers_are_answered_without_a_sandbox() {
    let stage = Stage::new(Access::default(), Options::default()).await;
    let request =
        Request::builder().uri(format!("http://{}/healthz", stage.front)).body(Full::default()).unwrap();
    assert_eq!(send(request).await, (StatusCode::OK, r#"{"status":"ok"}"#.to_owned()));
}

#[tokio::test]
async fn metrics_have_the_original_names_and_no_sandbox() {
    let stage = Stage::open().await;
    stage.get("/").await;
    let text = stage.router.metrics().text();
    for name in
        ["requests_total", "request_duration_seconds_bucket", "inflight_requests", "authz_decisions_total"]
    {
        assert!(text.contains(&format!("sandbox_router_{name}")), "{name}: {text}");
    }
    assert!(text.contains(r#"sandbox_namespace="agents""#) && !text.contains("box\""), "{text}");
}
