//! An API server in this process: reviews, sandboxes and their Pods, watches, and times without an answer.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use sandpod_kube::kube::Client;
use sandpod_kube::kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::{RwLock, RwLockWriteGuard, broadcast, watch};

type Answer = Response<BoxBody<Bytes, Infallible>>;

/// The fake API server. Clones are the same one.
#[derive(Clone)]
pub(crate) struct FakeApi(Arc<State>);

struct State {
    /// The user of each token.
    tokens: Mutex<HashMap<String, String>>,
    /// User, resource, namespace and name.
    rights: Mutex<HashSet<[String; 4]>>,
    objects: Mutex<HashMap<&'static str, Vec<Value>>>,
    events: broadcast::Sender<(&'static str, Value)>,
    is_away: watch::Sender<bool>,
    reviews: AtomicUsize,
    /// While it is held, reviews of tokens wait.
    held_reviews: RwLock<()>,
    patches: AtomicUsize,
    /// The status of answers to patches.
    patch_status: AtomicU16,
}

const PODS: &str = "pods";
const SANDBOXES: &str = "sandboxes";

impl FakeApi {
    pub(crate) fn new() -> Self {
        Self(Arc::new(State {
            tokens: Mutex::default(),
            rights: Mutex::default(),
            objects: Mutex::default(),
            events: broadcast::Sender::new(64),
            is_away: watch::Sender::new(false),
            reviews: AtomicUsize::default(),
            held_reviews: RwLock::default(),
            patches: AtomicUsize::default(),
            patch_status: AtomicU16::new(200),
        }))
    }

    pub(crate) fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { api.answer(request).await }
        });
        Client::new(service, "default")
    }

    pub(crate) fn add_user(&self, token: &str, user: &str) {
        self.0.tokens.lock().unwrap().insert(token.to_owned(), user.to_owned());
    }

    pub(crate) fn remove_user(&self, token: &str) {
        self.0.tokens.lock().unwrap().remove(token);
    }

    /// Permits a user to use one object.
    pub(crate) fn permit(&self, user: &str, resource: &str, namespace: &str, name: &str) {
        self.0.rights.lock().unwrap().insert([user, resource, namespace, name].map(str::to_owned));
    }

    /// While it is away, calls fail and watches break.
    pub(crate) fn set_away(&self, is_away: bool) {
        self.0.is_away.send_replace(is_away);
    }

    /// Reviews of tokens begin, and end only when the guard is dropped.
    pub(crate) async fn hold_reviews(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.held_reviews.write().await
    }

    pub(crate) fn reviews(&self) -> usize {
        self.0.reviews.load(Ordering::Relaxed)
    }

    /// Lets patches fail with a status, or succeed with 200.
    pub(crate) fn set_patch_status(&self, status: u16) {
        self.0.patch_status.store(status, Ordering::Relaxed);
    }

    pub(crate) fn patches(&self) -> usize {
        self.0.patches.load(Ordering::Relaxed)
    }

    /// Adds a running sandbox, its claim and its ready Pod.
    pub(crate) fn add_sandbox(&self, name: &str, address: &str) {
        let owner = |group: &str, kind: &str, name: &str, uid: &str| json!([{ "apiVersion": format!("{group}/v1beta1"), "kind": kind, "name": name, "uid": uid, "controller": true }]);
        let uid = format!("uid-{name}");
        let claim = format!("claim-{name}");
        self.add(
            SANDBOXES,
            &json!({
                "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
                "metadata": {
                    "name": name, "namespace": "agents", "uid": uid, "resourceVersion": "2",
                    "ownerReferences": owner("extensions.agents.x-k8s.io", "SandboxClaim", &claim, "c"),
                },
                "spec": { "operatingMode": "Running" },
            }),
        );
        self.add(
            PODS,
            &json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "name": name, "namespace": "agents", "uid": format!("pod-{name}"), "resourceVersion": "2",
                    "ownerReferences": owner("agents.x-k8s.io", "Sandbox", name, &uid),
                },
                "spec": { "containers": [] },
                "status": {
                    "phase": "Running", "podIP": address, "hostIP": "192.168.0.1",
                    "conditions": [{ "type": "Ready", "status": "True" }],
                },
            }),
        );
    }

    /// Removes a sandbox and its Pod.
    pub(crate) fn remove_sandbox(&self, name: &str) {
        for kind in [PODS, SANDBOXES] {
            let mut objects = self.0.objects.lock().unwrap();
            let of_kind = objects.entry(kind).or_default();
            let Some(index) = of_kind.iter().position(|object| object["metadata"]["name"] == name) else {
                continue;
            };
            let object = of_kind.remove(index);
            // Without a watch there is no receiver.
            let _ = self.0.events.send((kind, json!({ "type": "DELETED", "object": object })));
        }
    }

    fn add(&self, kind: &'static str, object: &Value) {
        self.0.objects.lock().unwrap().entry(kind).or_default().push(object.clone());
        let _ = self.0.events.send((kind, json!({ "type": "ADDED", "object": object })));
    }

    async fn answer(&self, request: Request<Body>) -> io::Result<Answer> {
        if *self.0.is_away.borrow() {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (head, body) = request.into_parts();
        let body = body.collect_bytes().await.map_err(io::Error::other)?;
        let sent: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
        let kind = if path.ends_with("/pods") { PODS } else { SANDBOXES };
        Ok(match path.rsplit('/').next().unwrap_or_default() {
            "tokenreviews" => {
                let answer = self.review_token(sent);
                drop(self.0.held_reviews.read().await);
                whole(&answer)
            }
            "subjectaccessreviews" => whole(&self.review_access(sent)),
            _ if head.method == Method::PATCH => {
                self.0.patches.fetch_add(1, Ordering::Relaxed);
                assert_eq!(sent, json!({ "spec": { "operatingMode": "Running" } }));
                let code = self.0.patch_status.load(Ordering::Relaxed);
                let mut answer = whole(&if code == 200 {
                    json!({
                        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": { "name": "box" },
                    })
                } else {
                    json!({
                        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
                        "message": "the patch failed", "reason": "Failed", "code": code,
                    })
                });
                *answer.status_mut() = StatusCode::from_u16(code).unwrap();
                answer
            }
            _ if query.contains("watch=true") => self.watch(kind),
            _ => {
                let items = self.0.objects.lock().unwrap().get(kind).cloned().unwrap_or_default();
                whole(&json!({ "metadata": { "resourceVersion": "1" }, "items": items }))
            }
        })
    }

    fn review_token(&self, mut review: Value) -> Value {
        self.0.reviews.fetch_add(1, Ordering::Relaxed);
        let token = review["spec"]["token"].as_str().unwrap_or_default();
        let user = self.0.tokens.lock().unwrap().get(token).cloned();
        review["status"] = match user {
            Some(user) => json!({ "authenticated": true, "user": { "username": user } }),
            None => json!({ "authenticated": false }),
        };
        review
    }

    fn review_access(&self, mut review: Value) -> Value {
        self.0.reviews.fetch_add(1, Ordering::Relaxed);
        let attributes = &review["spec"]["resourceAttributes"];
        assert_eq!((&attributes["verb"], &attributes["subresource"]), (&json!("create"), &json!("proxy")));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let right = [
            text(&review["spec"]["user"]),
            text(&attributes["resource"]),
            text(&attributes["namespace"]),
            text(&attributes["name"]),
        ];
        let is_allowed = self.0.rights.lock().unwrap().contains(&right);
        review["status"] = json!({ "allowed": is_allowed });
        review
    }

    fn watch(&self, kind: &'static str) -> Answer {
        // Objects that were added after the list are sent again; the watch ignores known ones.
        let objects = self.0.objects.lock().unwrap().get(kind).cloned().unwrap_or_default();
        let present = objects.into_iter().map(|object| {
            let line = format!("{}\n", json!({ "type": "ADDED", "object": object }));
            Ok(Frame::data(Bytes::from(line)))
        });
        let events = stream::unfold(self.0.events.subscribe(), move |mut events| async move {
            loop {
                match events.recv().await {
                    Ok((of, event)) if of == kind => {
                        let line = format!("{event}\n");
                        return Some((Ok(Frame::data(Bytes::from(line))), events));
                    }
                    Ok(_) => {}
                    Err(_) => return None,
                }
            }
        });
        let mut away = self.0.is_away.subscribe();
        let end = async move {
            // It fails when the test has ended.
            let _ = away.wait_for(|is_away| *is_away).await;
        };
        let events = stream::iter(present).chain(events).take_until(Box::pin(end));
        let events: Frames = Box::pin(events);
        Response::new(http_body_util::BodyExt::boxed(StreamBody::new(SyncStream(Mutex::new(events)))))
    }
}

type Frames = std::pin::Pin<Box<dyn futures::Stream<Item = Result<Frame<Bytes>, Infallible>> + Send>>;

/// A stream that is `Sync`, as a boxed body must be.
struct SyncStream(Mutex<Frames>);

impl futures::Stream for SyncStream {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.get_mut().0.get_mut().unwrap().as_mut().poll_next(context)
    }
}

fn whole(value: &Value) -> Answer {
    Response::new(Full::new(Bytes::from(value.to_string())).boxed())
}
