//! Tests with an API server that loses requests or responses, in paused time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode, Uri};
use sandpod_kube::kube::Client;
use sandpod_kube::kube::client::Body;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::backend::agent_sandbox::AgentSandbox;
use crate::backend::raw::Raw;
use crate::backend::{Backend, CreateSpec, Place};
use crate::{AgentSandboxConfig, ErrorKind, RawConfig, Result};

const CREATED_AT: &str = "sandpod.dev/created-at";
const UNREPORTED_LOSS: &str = "sandpod.dev/unreported-loss";

/// What happens to a request that changes the object.
#[derive(Clone, Copy)]
enum Order {
    /// It is carried out, and its response is lost.
    AnswerLost,
    /// It is lost.
    Lost,
    /// It is refused.
    Refused,
    /// It is carried out and answered.
    Done,
}

/// An API server with one object, which every path returns.
struct Server {
    object: Value,
    /// What happens to the requests that change it, one after the other.
    orders: Vec<Order>,
    /// How many reads fail after a request without a response.
    unreadable: usize,
    failing: usize,
}

type Shared = Arc<Mutex<Server>>;

fn server(orders: &[Order], unreadable: usize) -> Shared {
    let object = json!({
        "metadata": {
            "name": "a", "uid": "1", "resourceVersion": "1",
            "labels": { "app.kubernetes.io/managed-by": "sandpod", "sandpod.dev/id": "a" },
            "annotations": { "sandpod.dev/generation": "1" },
        },
        "spec": { "warmPoolRef": { "name": "pool" } },
    });
    let orders = orders.iter().rev().copied().collect();
    Arc::new(Mutex::new(Server { object, orders, unreadable, failing: 0 }))
}

impl Server {
    /// Returns no response if the connection is to hang.
    fn answer(&mut self, method: &Method, patch: &[u8]) -> Option<Response<Body>> {
        if method == Method::GET {
            let failing = self.failing > 0;
            self.failing = self.failing.saturating_sub(1);
            return Some(if failing { failure(500) } else { said(&self.object) });
        }
        let order = self.orders.pop().expect("no unexpected request is sent");
        if matches!(order, Order::AnswerLost | Order::Done) {
            let patch: Value = serde_json::from_slice(patch).unwrap();
            for (name, value) in patch["metadata"]["annotations"].as_object().into_iter().flatten() {
                match value {
                    Value::Null => drop(annotations(&mut self.object).remove(name)),
                    value => drop(annotations(&mut self.object).insert(name.clone(), value.clone())),
                }
            }
            self.object["metadata"]["resourceVersion"] = "2".into();
        }
        match order {
            Order::Done => Some(said(&self.object)),
            Order::Refused => Some(failure(403)),
            Order::AnswerLost | Order::Lost => {
                self.failing = self.unreadable;
                None
            }
        }
    }
}

fn annotations(object: &mut Value) -> &mut serde_json::Map<String, Value> {
    object["metadata"]["annotations"].as_object_mut().unwrap()
}

fn said(object: &Value) -> Response<Body> {
    Response::new(Body::from(object.to_string().into_bytes()))
}

fn failure(code: u16) -> Response<Body> {
    let status = json!({ "status": "Failure", "code": code, "message": "no", "reason": "" });
    let mut response = said(&status);
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response
}

fn client(server: &Shared) -> Client {
    let server = server.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = server.clone();
        async move {
            let (head, body) = request.into_parts();
            // No version of agent-sandbox is advertised, which means the newest.
            if !head.uri.path().contains("/namespaces/") {
                return Ok(failure(404));
            }
            let body = body.collect_bytes().await?;
            let answer = server.lock().unwrap().answer(&head.method, &body);
            match answer {
                Some(answer) => Ok::<_, tower::BoxError>(answer),
                None => std::future::pending().await,
            }
        }
    });
    Client::new(service, "n")
}

/// Records in each mode that a guest is bound. Returns the results and the servers.
async fn keep(orders: &[Order], unreadable: usize) -> [(Result<()>, Shared); 2] {
    let (one, other) = (server(orders, unreadable), server(orders, unreadable));
    let raw = Raw::new(client(&one), RawConfig::default());
    let agent_sandbox = AgentSandbox::new(client(&other), AgentSandboxConfig::of_template("t"));
    [(raw.record_bound(&place()).await, one), (agent_sandbox.record_bound(&place()).await, other)]
}

/// Records in each mode that a loss was reported. Returns the results and the servers.
async fn report(orders: &[Order], place: &Place) -> [(Result<()>, Shared); 2] {
    let servers = [server(orders, 0), server(orders, 0)];
    for server in &servers {
        annotations(&mut server.lock().unwrap().object).insert(UNREPORTED_LOSS.to_owned(), "1".into());
    }
    let [one, other] = servers;
    let raw = Raw::new(client(&one), RawConfig::default());
    let agent_sandbox = AgentSandbox::new(client(&other), AgentSandboxConfig::of_template("t"));
    [(raw.record_reported(place).await, one), (agent_sandbox.record_reported(place).await, other)]
}

fn place() -> Place {
    Place {
        id: "a".parse().unwrap(),
        uid: "1".to_owned(),
        generation: 1,
        name: "n/a-1".to_owned(),
        hint: String::new(),
        ttl: None,
        idle_ttl: None,
        bound: false,
        used_at: None,
        token_sha256: None,
        policy_sha256: None,
        annotations: Vec::new(),
        dirs: None,
        lost: None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_bind_that_was_recorded_without_a_response_counts() {
    for (kept, _) in keep(&[Order::AnswerLost], 0).await {
        kept.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_after_the_request_is_waited_for() {
    for (kept, _) in keep(&[Order::AnswerLost], 20).await {
        kept.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_request_is_sent_again() {
    for (kept, server) in keep(&[Order::Lost, Order::Done], 1).await {
        kept.unwrap();
        let server = server.lock().unwrap();
        assert!(server.object["metadata"]["annotations"][CREATED_AT].is_string() && server.orders.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_fails_at_once_and_a_lasting_outage_in_the_end() {
    for (refused, _) in keep(&[Order::Refused], 0).await {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Denied);
    }
    for (lost, _) in keep(&[Order::AnswerLost], usize::MAX).await {
        assert_eq!(lost.unwrap_err().kind(), ErrorKind::Unavailable);
    }
}

#[tokio::test(start_paused = true)]
async fn a_report_is_recorded_although_the_response_is_lost() {
    for orders in [&[Order::Done][..], &[Order::AnswerLost], &[Order::Lost, Order::Done]] {
        for (recorded, server) in report(orders, &place()).await {
            recorded.unwrap();
            let mut server = server.lock().unwrap();
            assert!(
                !annotations(&mut server.object).contains_key(UNREPORTED_LOSS) && server.orders.is_empty()
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_report_of_an_older_loss_keeps_the_next_one_unreported() {
    let earlier = Place { generation: 0, ..place() };
    for (recorded, server) in report(&[], &earlier).await {
        recorded.unwrap();
        assert!(annotations(&mut server.lock().unwrap().object).contains_key(UNREPORTED_LOSS));
    }
}

/// An API server with agent-sandbox that creates a claim without a response and can't be reached for a while.
struct Away {
    claim: Option<Value>,
    made: usize,
    until: Instant,
}

impl Away {
    /// Returns no response if the connection is refused.
    fn answer(&mut self, method: &Method, path: &Uri, body: &[u8]) -> Option<Response<Body>> {
        let path = path.path();
        if self.made > 0 && Instant::now() < self.until {
            return None;
        }
        match *method {
            Method::POST => {
                let mut claim: Value = serde_json::from_slice(body).unwrap();
                claim["metadata"]["uid"] = "1".into();
                claim["metadata"]["resourceVersion"] = "1".into();
                (self.claim, self.made) = (Some(claim), self.made + 1);
                None
            }
            Method::DELETE => {
                self.claim.take().map_or_else(|| Some(failure(404)), |claim| Some(said(&claim)))
            }
            _ if path.ends_with("/sandboxwarmpools") => {
                let pool = json!({
                    "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool",
                    "metadata": { "name": "pool" },
                    "spec": { "replicas": 1, "sandboxTemplateRef": { "name": "t" } },
                });
                Some(said(&json!({ "metadata": {}, "items": [pool] })))
            }
            _ if path.contains("/sandboxclaims/") => {
                Some(self.claim.as_ref().map_or_else(|| failure(404), said))
            }
            _ => Some(failure(404)),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_a_failed_creation_is_deleted_after_the_outage() {
    let begun = Instant::now();
    let away = Away { claim: None, made: 0, until: begun + Duration::from_secs(300) };
    let server = Arc::new(Mutex::new(away));
    let answering = server.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = answering.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            let answer = server.lock().unwrap().answer(&head.method, &head.uri, &body);
            answer.ok_or_else(|| tower::BoxError::from("connection refused"))
        }
    });
    let backend = AgentSandbox::new(Client::new(service, "n"), AgentSandboxConfig::of_template("t"));

    let error = backend.create(&"a".parse().unwrap(), &CreateSpec::default()).await.err().unwrap();

    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let tried = begun.elapsed();
    assert!(tried > Duration::from_secs(115) && tried <= Duration::from_secs(120), "{tried:?}");
    let lifecycle = server.lock().unwrap().claim.as_ref().unwrap()["spec"]["lifecycle"].clone();
    assert_eq!(lifecycle["shutdownPolicy"], "Delete", "it would end by itself");
    tokio::time::sleep_until(begun + Duration::from_secs(310)).await;
    let server = server.lock().unwrap();
    assert!(server.claim.is_none() && server.made == 1);
}
