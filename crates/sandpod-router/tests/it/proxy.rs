//! Requests through the router: what arrives at the sandbox, and what comes back.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use sandpod_router::access::Access;
use sandpod_router::scoped_token::Keys;
use sandpod_router::{Limits, Options, TunnelLimits};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

use crate::stage::{SECRET, SOON, Stage, echo, ends, open_echo, send, send_raw};

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
async fn a_timeout_ends_a_request_to_upgrade_and_no_answer_that_has_begun() {
    let stage = Stage::open().await;
    let upgrade = stage.request("/hang").header("connection", "upgrade").header("upgrade", "echo");
    let upgrade = upgrade.header("x-sandbox-timeout", "0.2").body(Full::default()).unwrap();
    assert_eq!(send(upgrade).await.0, StatusCode::GATEWAY_TIMEOUT);

    let client = Client::builder(TokioExecutor::new()).build_http();
    let request = stage.request("/ticks").header("x-sandbox-timeout", "1.5");
    let started = Instant::now();
    let response = client.request(request.body(Full::<Bytes>::default()).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let mut body = response.into_body();
    while started.elapsed() < Duration::from_secs(2) {
        timeout(SOON, body.frame()).await.expect("a tick").unwrap().unwrap();
    }
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
    let stage = Stage::open_with(Options { tunnels, ..Options::default() }).await;
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
    let stage = Stage::open_with(options).await;
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
    let stage = Stage::open_with(options).await;
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
    // By its length the body is a second request; by its chunks it is empty. The chunks count, and the connection ends.
    let evil = format!(
        "0\r\n\r\nGET /evil HTTP/1.1\r\nX-Sandbox-ID: box\r\nX-Sandbox-Namespace: agents\r\nX-Sandbox-Port: {}\r\nConnection: close\r\n\r\n",
        stage.sandbox.port()
    );
    let length = format!("Content-Length: {}", evil.len());
    for head in
        [format!("{length}\r\nTransfer-Encoding: chunked"), format!("Transfer-Encoding: chunked\r\n{length}")]
    {
        let answers = send_raw(&stage, &head, &evil).await;
        assert_eq!(answers.matches("HTTP/1.1").count(), 1, "{head}: {answers}");
        assert!(answers.starts_with("HTTP/1.1 200") && answers.ends_with("\r\n\r\n0"), "{head}: {answers}");
    }
}

#[tokio::test]
async fn ambiguous_framing_is_refused() {
    let stage = Stage::open().await;
    for head in [
        "Content-Length: 4\r\nContent-Length: 5",
        "Content-Length: +4",
        "Content-Length: 4, 5",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding : chunked",
        "X-Folded: a\r\n Transfer-Encoding: chunked",
        "X-Sandbox-Port: 1\rX: y",
    ] {
        let answers = send_raw(&stage, head, "0\r\n\r\nGET /evil HTTP/1.1\r\n\r\n").await;
        assert!(
            answers.starts_with("HTTP/1.1 400") && answers.matches("HTTP/1.1").count() == 1,
            "{head}: {answers}"
        );
    }
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
