//! Requests to suspended sandboxes.

use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use http::StatusCode;
use http_body_util::Full;
use sandpod_router::{Endpoint, Options, SandboxRef, SandboxState, Wake};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::api::FakeApi;
use crate::stage::{SOON, Stage, send_for_head};

fn suspended() -> SandboxState {
    SandboxState {
        sandbox: SandboxRef::new("agents", "box"),
        uid: "u1".to_owned(),
        claim: None,
        is_suspended: true,
    }
}

/// A router in front of a suspended sandbox, which it wakes within `limit`.
async fn stage(api: &FakeApi, limit: Option<Duration>) -> Stage {
    let wake = limit.map(|limit| Wake::new(api.client(), limit));
    let stage = Stage::open_with(Options { wake, ..Options::default() }).await;
    let registry = stage.router.registry();
    registry.replace_pods(&[]);
    registry.apply_sandbox(suspended());
    stage
}

/// Starts the Pod of the sandbox, as the controller does.
fn start(stage: &Stage, sandbox: SocketAddr) {
    let (uid, gone) = ("u1".to_owned(), CancellationToken::new());
    let endpoint = Endpoint { address: sandbox.ip(), uid, gone };
    stage.router.registry().insert(&SandboxRef::new("agents", "box"), endpoint);
}

#[tokio::test]
async fn many_requests_wake_a_sandbox_once() {
    let api = FakeApi::new();
    let stage = stage(&api, Some(SOON)).await;
    let starting = async {
        while api.patches() == 0 {
            tokio::task::yield_now().await;
        }
        // Running, and without a Pod yet.
        stage.router.registry().apply_sandbox(SandboxState { is_suspended: false, ..suspended() });
        tokio::time::sleep(Duration::from_millis(100)).await;
        start(&stage, stage.sandbox);
    };
    let requests = join_all((0..20).map(|_| stage.get("/any")));
    let (answers, ()) = timeout(SOON, async { tokio::join!(requests, starting) }).await.expect("answers");
    assert!(answers.iter().all(|(status, _)| *status == StatusCode::OK), "{answers:?}");
    assert_eq!(api.patches(), 1);
}

#[tokio::test]
async fn a_request_is_held_up_to_the_limit() {
    let api = FakeApi::new();
    let stage = stage(&api, Some(Duration::from_millis(300))).await;
    let (status, headers) = send_for_head(stage.request("/any")).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(headers["retry-after"], "2");
    assert_eq!(api.patches(), 1);
}

#[tokio::test]
async fn without_wake_a_suspended_sandbox_is_refused_with_the_reason() {
    let api = FakeApi::new();
    let stage = stage(&api, None).await;
    let (status, body) = stage.get("/any").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(body.contains(r#""reason":"suspended""#), "{body}");
    assert_eq!(api.patches(), 0);
}

#[tokio::test]
async fn a_request_with_a_timeout_waits_no_longer() {
    let api = FakeApi::new();
    let stage = stage(&api, Some(SOON)).await;
    let request = stage.request("/any").header("x-sandbox-timeout", "0.3").body(Full::default()).unwrap();
    let (status, body) = crate::stage::send(request).await;
    assert_eq!((status, body.contains("timeout")), (StatusCode::GATEWAY_TIMEOUT, true), "{body}");
}

#[tokio::test]
async fn a_request_is_refused_at_once_if_the_sandbox_may_not_be_resumed() {
    for status in [403, 404] {
        let api = FakeApi::new();
        api.set_patch_status(status);
        let stage = stage(&api, Some(10 * SOON)).await;
        let (status, body) = stage.get("/any").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(body.contains(r#""reason":"suspended""#), "{body}");
        assert_eq!(api.patches(), 1);
    }
}

#[tokio::test]
async fn a_failed_resume_is_tried_again_after_a_pause() {
    let api = FakeApi::new();
    api.set_patch_status(500);
    let stage = stage(&api, Some(SOON)).await;
    let driving = async {
        while api.patches() == 0 {
            tokio::task::yield_now().await;
        }
        let started = Instant::now();
        for _ in 0..50 {
            stage.router.registry().apply_sandbox(suspended());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let pauses = started.elapsed().as_millis() / 500;
        assert!(api.patches() as u128 <= 2 + pauses, "{} after {pauses} pauses", api.patches());
        api.set_patch_status(200);
        let before = api.patches();
        while api.patches() == before {
            tokio::task::yield_now().await;
        }
        start(&stage, stage.sandbox);
    };
    let (answer, ()) =
        timeout(SOON, async { tokio::join!(stage.get("/any"), driving) }).await.expect("an answer");
    assert_eq!(answer.0, StatusCode::OK);
}
