//! Callers and what they may use.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use http::{Request, StatusCode};
use http_body_util::Full;
use sandpod_router::access::Access;
use sandpod_router::access::reviews::Reviews;
use sandpod_router::scoped_token::Keys;
use sandpod_router::{Domain, Endpoint, Options, SandboxRef, SandboxState};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::api::FakeApi;
use crate::stage::{SECRET, SOON, Stage, echo, open_echo_with, send, send_for_head};

const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

fn reviews(api: &FakeApi) -> Reviews {
    Reviews::new(api.client(), Vec::new(), Arc::default())
}

/// A router with all ways to prove a caller. `owner` may use the sandbox, `claimant` its claim, `stranger` another sandbox.
async fn stage(api: &FakeApi) -> (Stage, Keys) {
    for user in ["owner", "claimant", "stranger"] {
        api.add_user(&format!("{user}-token"), user);
    }
    api.permit("owner", "sandboxes", "agents", "box");
    api.permit("claimant", "sandboxclaims", "agents", "thread-1");
    api.permit("stranger", "sandboxes", "agents", "other");
    let keys = Keys::new(&[SECRET]).unwrap();
    let access = Access {
        keys: Some(keys.clone()),
        share_keys: Some(keys.clone()),
        reviews: Some(reviews(api)),
        is_open: false,
    };
    let options = Options { domain: Some(Domain::new("p.test").unwrap()), ..Options::default() };
    let stage = Stage::new(access, options).await;
    stage.router.registry().apply_sandbox(SandboxState {
        sandbox: SandboxRef::new("agents", "box"),
        uid: "u1".to_owned(),
        claim: Some("thread-1".to_owned()),
        is_suspended: false,
    });
    (stage, keys)
}

#[tokio::test]
async fn each_caller_uses_exactly_its_sandboxes_by_every_method() {
    let api = FakeApi::new();
    let (stage, keys) = stage(&api).await;
    let minute = Duration::from_secs(60);
    let callers = [
        ("no credential", None, [401; 4]),
        ("unknown token", Some("unknown".to_owned()), [401; 4]),
        ("expired token", Some(keys.sign("agents", "box", Duration::ZERO)), [401; 4]),
        ("owner", Some("owner-token".to_owned()), [200, 200, 200, 403]),
        ("claimant", Some("claimant-token".to_owned()), [200, 200, 200, 403]),
        ("stranger", Some("stranger-token".to_owned()), [403, 403, 403, 502]),
        ("token of the sandbox", Some(keys.sign("agents", "box", minute)), [200, 200, 403, 403]),
        ("token of another", Some(keys.sign("agents", "other", minute)), [403, 403, 403, 502]),
    ];
    for (caller, token, expected) in callers {
        let named = [
            ("x-sandbox-id", "box"),
            ("x-sandbox-claim", "thread-1"),
            ("x-sandbox-uid", "u1"),
            ("x-sandbox-id", "other"),
        ];
        for ((header, name), expected) in named.into_iter().zip(expected) {
            for method in METHODS {
                let mut request = Request::builder()
                    .method(method)
                    .uri(format!("http://{}/any", stage.front))
                    .header(header, name)
                    .header("x-sandbox-namespace", "agents")
                    .header("x-sandbox-port", stage.sandbox.port().to_string());
                if let Some(token) = &token {
                    request = request.header("authorization", format!("Bearer {token}"));
                }
                let (status, body) = send(request.body(Full::default()).unwrap()).await;
                assert_eq!(status.as_u16(), expected, "{caller} {method} {header}={name}: {body}");
            }
        }
    }
}

#[tokio::test]
async fn reviews_are_cached_and_fail_closed() {
    let api = FakeApi::new();
    let (stage, _) = stage(&api).await;
    let get = |token: &str| {
        let request = stage.request("/").header("authorization", format!("Bearer {token}"));
        send(request.body(Full::default()).unwrap())
    };
    for _ in 0..5 {
        assert_eq!(get("owner-token").await.0, StatusCode::OK);
    }
    assert_eq!(api.reviews(), 2, "one of the token and one of the right");
    api.set_away(true);
    assert_eq!(get("owner-token").await.0, StatusCode::OK, "a recent answer counts");
    let (status, body) = get("claimant-token").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(body.contains(r#""reason":"api-server-unavailable""#), "{body}");
}

#[tokio::test]
async fn many_new_tokens_do_not_flood_the_api_server() {
    let api = FakeApi::new();
    let (stage, _) = stage(&api).await;
    let held = api.hold_reviews().await;
    let requests = (0..100).map(|number| {
        let request = stage.request("/").header("authorization", format!("Bearer token-{number}"));
        send(request.body(Full::default()).unwrap())
    });
    let waiting = async {
        while api.reviews() < 64 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(api.reviews(), 64);
        drop(held);
    };
    let (answers, ()) =
        timeout(SOON, async { tokio::join!(join_all(requests), waiting) }).await.expect("answers");
    let is_refusal =
        |status: &StatusCode| [StatusCode::UNAUTHORIZED, StatusCode::SERVICE_UNAVAILABLE].contains(status);
    assert!(answers.iter().all(|(status, _)| is_refusal(status)), "{answers:?}");
}

#[tokio::test]
async fn until_the_sandboxes_are_known_a_caller_is_asked_to_retry() {
    let api = FakeApi::new();
    let (stage, keys) = stage(&api).await;
    let token = keys.sign("agents", "box", Duration::from_secs(60));
    let get = |header: &'static str, name: &'static str, token: &str| {
        let request = Request::builder().uri(format!("http://{}/", stage.front)).header(header, name);
        let request = request.header("x-sandbox-namespace", "agents");
        send(request.header("authorization", format!("Bearer {token}")).body(Full::default()).unwrap())
    };
    stage.router.registry().replace_sandboxes(Vec::new());
    assert_eq!(get("x-sandbox-claim", "thread-1", &token).await.0, StatusCode::FORBIDDEN);
    stage.router.registry().set_sandboxes_outdated();
    for (header, name) in
        [("x-sandbox-claim", "thread-1"), ("x-sandbox-uid", "u1"), ("x-sandbox-id", "other")]
    {
        for token in [token.as_str(), "owner-token"] {
            let (status, body) = get(header, name, token).await;
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{header}: {body}");
            assert!(body.contains(r#""reason":"api-server-unavailable""#), "{header}: {body}");
        }
    }
    assert_eq!(get("x-sandbox-id", "box", "unknown").await.0, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_stream_outlives_its_token_and_a_new_request_does_not() {
    let api = FakeApi::new();
    let (stage, keys) = stage(&api).await;
    let token = keys.sign("agents", "box", Duration::from_secs(5));
    let authorization = format!("Authorization: Bearer {token}\r\n");
    let mut stream = open_echo_with(&stage, &authorization).await;
    let refused = async {
        loop {
            let request = stage.request("/").header("authorization", format!("Bearer {token}"));
            if send(request.body(Full::default()).unwrap()).await.0 == StatusCode::UNAUTHORIZED {
                return;
            }
        }
    };
    timeout(SOON, refused).await.expect("the token ends");
    assert!(echo(&mut stream).await, "the stream goes on");
}

/// A request to the preview of the sandbox.
fn preview(stage: &Stage, method: &str, path: &str) -> http::request::Builder {
    let host = format!("{}--box.agents.p.test", stage.sandbox.port());
    Request::builder().method(method).uri(format!("http://{}{path}", stage.front)).header("host", host)
}

#[tokio::test]
async fn a_preview_is_private_until_a_link_to_it_is_shared() {
    let api = FakeApi::new();
    let (stage, _) = stage(&api).await;
    let body = Full::default;
    assert_eq!(send(preview(&stage, "GET", "/page").body(body()).unwrap()).await.0, StatusCode::UNAUTHORIZED);
    let owner = |method, path| preview(&stage, method, path).header("authorization", "Bearer owner-token");
    let (status, page) = send(owner("GET", "/page").body(body()).unwrap()).await;
    assert!(status == StatusCode::OK && page.contains(" GET /page"), "{status} {page}");

    let path = "/.sandpod/share?seconds=60";
    let stranger = preview(&stage, "POST", path).header("authorization", "Bearer stranger-token");
    assert_eq!(send(stranger.body(body()).unwrap()).await.0, StatusCode::FORBIDDEN);
    let (status, link) = send(owner("POST", path).body(body()).unwrap()).await;
    assert_eq!(status, StatusCode::OK, "{link}");
    let link: serde_json::Value = serde_json::from_str(&link).unwrap();
    let (status, headers) = send_for_head(preview(&stage, "GET", link["path"].as_str().unwrap())).await;
    assert_eq!((status, headers["location"].to_str().unwrap()), (StatusCode::SEE_OTHER, "/"));

    let cookie = headers["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    let with = |method, path, cookie: &str| preview(&stage, method, path).header("cookie", cookie);
    let request = with("GET", "/page", &format!("own=1; {cookie}")).body(body()).unwrap();
    let (status, page) = send(request).await;
    assert_eq!(status, StatusCode::OK, "{page}");
    assert!(page.contains("cookie: own=1") && !page.contains("sandpod-share"), "{page}");
    let changed = format!("{cookie}x");
    assert_eq!(send(with("GET", "/", &changed).body(body()).unwrap()).await.0, StatusCode::UNAUTHORIZED);
    let sharing = with("POST", path, &cookie).body(body()).unwrap();
    assert_eq!(send(sharing).await.0, StatusCode::UNAUTHORIZED, "a link makes no links");
    let elsewhere = with("GET", "/", &cookie).header("origin", "https://evil.agents.p.test");
    assert_eq!(send(elsewhere.body(body()).unwrap()).await.0, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn a_shared_link_does_not_open_a_later_sandbox_with_the_same_name() {
    let api = FakeApi::new();
    let (stage, _) = stage(&api).await;
    let owner = preview(&stage, "POST", "/.sandpod/share").header("authorization", "Bearer owner-token");
    let (_, link) = send(owner.body(Full::default()).unwrap()).await;
    let link: serde_json::Value = serde_json::from_str(&link).unwrap();
    let (_, headers) = send_for_head(preview(&stage, "GET", link["path"].as_str().unwrap())).await;
    let cookie = headers["set-cookie"].to_str().unwrap().split(';').next().unwrap();
    let page = || send(preview(&stage, "GET", "/").header("cookie", cookie).body(Full::default()).unwrap());
    assert_eq!(page().await.0, StatusCode::OK);

    let (uid, gone) = ("u2".to_owned(), CancellationToken::new());
    let endpoint = Endpoint { address: stage.sandbox.ip(), uid, gone };
    stage.router.registry().insert(&SandboxRef::new("agents", "box"), endpoint);
    let (status, body) = page().await;
    assert_eq!((status, body.contains("sandbox-not-found")), (StatusCode::BAD_GATEWAY, true), "{body}");
}

#[tokio::test]
async fn an_answer_and_a_tunnel_end_with_their_shared_link() {
    let api = FakeApi::new();
    let (stage, _) = stage(&api).await;
    let owner = preview(&stage, "POST", "/.sandpod/share?seconds=5");
    let owner = owner.header("authorization", "Bearer owner-token");
    let (_, link) = send(owner.body(Full::default()).unwrap()).await;
    let link: serde_json::Value = serde_json::from_str(&link).unwrap();
    let (_, headers) = send_for_head(preview(&stage, "GET", link["path"].as_str().unwrap())).await;
    let cookie = headers["set-cookie"].to_str().unwrap().split(';').next().unwrap();

    let host = format!("{}--box.agents.p.test", stage.sandbox.port());
    let mut ends = Vec::new();
    for path in ["/echo", "/ticks"] {
        let mut stream = TcpStream::connect(stage.front).await.unwrap();
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\nConnection: Upgrade\r\n\
             Upgrade: echo\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        ends.push(async move {
            let mut answer = Vec::new();
            // A connection that is cut may be reset.
            let _ = stream.read_to_end(&mut answer).await;
            String::from_utf8_lossy(&answer).into_owned()
        });
    }
    let answers = timeout(SOON, join_all(ends)).await.expect("they end");
    assert!(answers[0].starts_with("HTTP/1.1 101"), "{answers:?}");
    assert!(answers[1].starts_with("HTTP/1.1 200") && answers[1].contains("tick 1\n"), "{answers:?}");
}

#[tokio::test]
async fn another_page_reaches_no_preview_whatever_its_credential_is() {
    let api = FakeApi::new();
    let (stage, _) = stage(&api).await;
    let owner = |method, path| preview(&stage, method, path).header("authorization", "Bearer owner-token");
    let elsewhere = owner("GET", "/page").header("origin", "https://8000--evil.agents.p.test");
    assert_eq!(send(elsewhere.body(Full::default()).unwrap()).await.0, StatusCode::FORBIDDEN);
    let frame = owner("GET", "/page").header("sec-fetch-site", "same-site");
    let frame = frame.header("sec-fetch-mode", "navigate").header("sec-fetch-dest", "iframe");
    assert_eq!(send(frame.body(Full::default()).unwrap()).await.0, StatusCode::FORBIDDEN);
    assert_eq!(api.reviews(), 0, "no credential is checked");

    let own = owner("POST", "/.sandpod/share").header("sec-fetch-site", "same-origin");
    assert_eq!(send(own.body(Full::default()).unwrap()).await.0, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn headers_and_host_cannot_name_two_sandboxes() {
    let api = FakeApi::new();
    let (stage, _) = stage(&api).await;
    let request = preview(&stage, "GET", "/").header("x-sandbox-id", "other");
    assert_eq!(send(request.body(Full::default()).unwrap()).await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_revoked_token_is_refused_once_its_review_is_old() {
    let api = FakeApi::new();
    let (stage, _) = stage(&api).await;
    let get = || {
        let request = stage.request("/").header("authorization", "Bearer owner-token");
        send(request.body(Full::default()).unwrap())
    };
    assert_eq!(get().await.0, StatusCode::OK);
    api.remove_user("owner-token");
    let refused = async { while get().await.0 != StatusCode::UNAUTHORIZED {} };
    timeout(SOON, refused).await.expect("an answer counts for seconds");
}
