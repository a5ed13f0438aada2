//! Callers that send too much, too slowly or too often, and sandboxes that end in the middle.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use sandpod_router::{Limits, Listener, Options};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::stage::{SOON, Stage, echo, open_echo, send_raw};

#[tokio::test]
async fn an_oversized_head_is_refused() {
    let stage = Stage::open().await;
    let answer = send_raw(&stage, &format!("X-Large: {}", "x".repeat(100 << 10)), "").await;
    assert!(answer.starts_with("HTTP/1.1 431") || answer.is_empty(), "{answer}");
    let many: Vec<_> = (0..1000).map(|number| format!("X-{number}: y")).collect();
    let answer = send_raw(&stage, &many.join("\r\n"), "").await;
    assert!(answer.starts_with("HTTP/1.1 431") || answer.is_empty(), "{answer}");
}

#[tokio::test]
async fn clients_that_send_no_whole_head_lose_their_connection() {
    let stage = Stage::open().await;
    let beginnings: [&[u8]; 4] = [b"", b"PRI * HT", b"POST /a HTTP/1.1\r\nHost:", b"GET /"];
    let mut streams = Vec::new();
    for beginning in beginnings {
        let mut stream = TcpStream::connect(stage.front).await.unwrap();
        stream.write_all(beginning).await.unwrap();
        streams.push(stream);
    }
    for mut stream in streams {
        let mut rest = Vec::new();
        let end = timeout(SOON, stream.read_to_end(&mut rest)).await;
        let _ = end.expect("the router closes the connection");
        assert!(!rest.starts_with(b"HTTP/1.1 2"), "{rest:?}");
    }
}

#[tokio::test]
async fn a_refused_caller_keeps_no_connection() {
    let stage = Stage::open().await;
    let mut stream = TcpStream::connect(stage.front).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: front\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    timeout(SOON, stream.read_to_string(&mut answer)).await.expect("the connection ends").unwrap();
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("connection: close"), "{answer}");
}

#[tokio::test]
async fn a_probe_keeps_no_connection() {
    let stage = Stage::open().await;
    let mut stream = TcpStream::connect(stage.front).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: front\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    timeout(SOON, stream.read_to_string(&mut answer)).await.expect("the connection ends").unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close"), "{answer}");
}

#[tokio::test]
async fn an_http2_connection_without_an_admitted_request_ends() {
    let stage = Stage::open().await;
    let open = || async {
        let stream = TokioIo::new(TcpStream::connect(stage.front).await.unwrap());
        hyper::client::conn::http2::handshake::<_, _, Full<Bytes>>(TokioExecutor::new(), stream)
            .await
            .unwrap()
    };
    let ((mut refused, refused_connection), (mut admitted, admitted_connection)) =
        tokio::join!(open(), open());
    let refused_connection = tokio::spawn(refused_connection);
    let admitted_connection = tokio::spawn(admitted_connection);
    let bare = Request::builder().uri(format!("http://{}/", stage.front));
    let answer = refused.send_request(bare.body(Full::<Bytes>::default()).unwrap());
    let answer = timeout(SOON, answer).await.expect("an answer").unwrap();
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    let answer = admitted.send_request(stage.request("/ticks").body(Full::<Bytes>::default()).unwrap());
    let mut ticks = timeout(SOON, answer).await.expect("an answer").unwrap().into_body();

    // Its end may be an error; the client still wants it.
    let _ = timeout(SOON, refused_connection).await.expect("the connection ends");
    drop(refused);
    timeout(SOON, ticks.frame()).await.expect("a tick").unwrap().unwrap();
    assert!(!admitted_connection.is_finished());
    let another = admitted.send_request(stage.request("/any").body(Full::<Bytes>::default()).unwrap());
    assert!(timeout(SOON, another).await.expect("an answer").is_ok());
}

#[tokio::test]
async fn a_tunnel_counts_as_a_connection() {
    let stage = Stage::open().await;
    let listener = Listener::bind(stage.router.clone(), ([127, 0, 0, 1], 0).into(), None, 1).await.unwrap();
    let stage = Stage { front: listener.address().unwrap(), ..stage };
    tokio::spawn(listener.serve(CancellationToken::new()));
    let mut tunnel = open_echo(&stage).await;
    let second = stage.get("/any");
    let mut second = std::pin::pin!(second);
    assert!(timeout(Duration::from_millis(300), second.as_mut()).await.is_err(), "it waits");
    assert!(echo(&mut tunnel).await);
    drop(tunnel);
    assert!(timeout(SOON, second).await.expect("an answer").0.is_success());
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_not_taken_for_whole() {
    let stage = Stage::open().await;
    let client = Client::builder(TokioExecutor::new()).build_http();
    let request = stage.request("/die").body(Full::<Bytes>::default()).unwrap();
    let response = timeout(SOON, client.request(request)).await.expect("an answer").unwrap();
    let body = timeout(SOON, response.into_body().collect()).await.expect("an end");
    assert!(body.is_err(), "the body ends with an error");
    assert!(stage.get("/any").await.0.is_success(), "the router goes on");
}

#[tokio::test]
async fn a_caller_that_hangs_up_is_counted() {
    let stage = Stage::open().await;
    let mut stream = TcpStream::connect(stage.front).await.unwrap();
    let head = format!(
        "GET /hang HTTP/1.1\r\nHost: front\r\nX-Sandbox-ID: box\r\nX-Sandbox-Namespace: agents\r\n\
         X-Sandbox-Port: {}\r\n\r\n",
        stage.sandbox.port()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let in_flight = |number| format!("sandbox_router_inflight_requests {number}");
    until_metrics(&stage, &in_flight(1)).await;
    drop(stream);
    until_metrics(&stage, r#"code="499""#).await;
    until_metrics(&stage, &in_flight(0)).await;
}

async fn until_metrics(stage: &Stage, text: &str) {
    let waiting = async {
        while !stage.router.metrics().text().contains(text) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, waiting).await.unwrap_or_else(|_| panic!("{text}: {}", stage.router.metrics().text()));
}

/// Each connection has four ends in this process.
fn allow_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}

#[tokio::test]
async fn a_thousand_idle_websockets_stay_open() {
    allow_open_files();
    let limits = Limits { per_sandbox: 2000, ..Limits::default() };
    let stage = Stage::open_with(Options { limits, ..Options::default() }).await;
    let mut streams = Vec::new();
    for _ in 0..1000 {
        streams.push(open_echo(&stage).await);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    for stream in &mut streams {
        assert!(echo(stream).await);
    }
    assert!(stage.router.metrics().text().contains("sandbox_router_open_tunnels 1000"));
}
