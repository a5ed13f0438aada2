//! Followers of a server of the tests' own.

use std::collections::BTreeMap;
use std::convert::Infallible;

use bytes::Bytes;
use futures::channel::mpsc;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower::BoxError;

use super::*;

/// An API server with some Pods.
#[derive(Default)]
struct Server {
    phases: BTreeMap<String, String>,
    version: u64,
    reads: usize,
    /// The watches that were begun; those that were ended are closed.
    watches: Vec<mpsc::UnboundedSender<Result<Frame<Bytes>, Infallible>>>,
}

type Shared = Arc<Mutex<Server>>;

impl Server {
    fn pod(&self, name: &str) -> Option<Value> {
        let phase = self.phases.get(name)?;
        let metadata = json!({ "name": name, "resourceVersion": self.version.to_string() });
        Some(json!({ "metadata": metadata, "status": { "phase": phase } }))
    }

    fn set(&mut self, name: &str, phase: &str) {
        self.phases.insert(name.to_owned(), phase.to_owned());
        self.version += 1;
        let event = json!({ "type": "MODIFIED", "object": self.pod(name) }).to_string() + "\n";
        for watch in &self.watches {
            let _ = watch.unbounded_send(Ok(Frame::data(Bytes::from(event.clone()))));
        }
    }

    fn answer(&mut self, request: &Request<Body>) -> Response<UnsyncBoxBody<Bytes, BoxError>> {
        let (status, body) = match request.uri().path().strip_prefix("/api/v1/namespaces/n/pods/") {
            Some(name) => {
                self.reads += 1;
                match self.pod(name) {
                    Some(pod) => (200, pod),
                    None => (
                        404,
                        json!({ "status": "Failure", "code": 404, "message": "", "reason": "NotFound" }),
                    ),
                }
            }
            None if request.uri().query().is_some_and(|query| query.contains("watch=true")) => {
                let (sender, events) = mpsc::unbounded();
                self.watches.push(sender);
                let body = BodyExt::map_err(StreamBody::new(events), BoxError::from).boxed_unsync();
                return Response::new(body);
            }
            None => {
                (200, json!({ "metadata": { "resourceVersion": self.version.to_string() }, "items": [] }))
            }
        };
        let body = Full::new(Bytes::from(body.to_string())).map_err(BoxError::from).boxed_unsync();
        let mut response = Response::new(body);
        *response.status_mut() = http::StatusCode::from_u16(status).unwrap();
        response
    }
}

fn watch_of(server: &Shared) -> SharedWatch<Pod> {
    let server = server.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        std::future::ready(Ok::<_, BoxError>(server.lock().unwrap().answer(&request)))
    });
    SharedWatch::new(Api::namespaced(Client::new(service, "n"), "n"), "a=b")
}

async fn until(follower: &mut Follower<Pod>, phase: Option<&str>) {
    loop {
        let pod = follower.next().await.unwrap();
        let seen = pod.as_ref().and_then(|pod| pod.status.as_ref()?.phase.as_deref());
        if seen == phase {
            return;
        }
    }
}

async fn settle() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_hundred_who_wait_share_one_watch_and_each_hears_of_its_own_object() {
    let server = Shared::default();
    let watch = watch_of(&server);
    let mut followers: Vec<_> = (0..100).map(|number| watch.follow(&format!("p{number}"))).collect();
    for follower in &mut followers {
        until(follower, None).await;
    }
    settle().await;

    for number in (0..100).rev() {
        server.lock().unwrap().set(&format!("p{number}"), "Running");
    }

    for follower in &mut followers {
        until(follower, Some("Running")).await;
    }
    assert_eq!(server.lock().unwrap().watches.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_happened_while_the_watch_was_lost_is_not_missed() {
    let server = Shared::default();
    server.lock().unwrap().set("p", "Pending");
    let watch = watch_of(&server);
    let mut follower = watch.follow("p");
    until(&mut follower, Some("Pending")).await;
    // Once more, when the watch is there.
    until(&mut follower, Some("Pending")).await;
    settle().await;

    let lost = std::mem::take(&mut server.lock().unwrap().watches);
    let broken = json!({ "type": "ERROR", "object": {
        "status": "Failure", "code": 410, "message": "too old", "reason": "Expired",
    }});
    for watch in &lost {
        watch.unbounded_send(Ok(Frame::data(Bytes::from(broken.to_string() + "\n")))).unwrap();
    }
    server.lock().unwrap().set("p", "Running");

    until(&mut follower, Some("Running")).await;
    assert_eq!(server.lock().unwrap().watches.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_nobody_needs_ends_and_the_next_one_begins_another() {
    let server = Shared::default();
    let watch = watch_of(&server);
    until(&mut watch.follow("p"), None).await;
    sleep(LINGER * 2).await;
    assert!(server.lock().unwrap().watches[0].is_closed());
    assert!(watch.0.followed().by_name.is_empty());

    let mut follower = watch.follow("p");
    until(&mut follower, None).await;
    settle().await;
    server.lock().unwrap().set("p", "Running");
    until(&mut follower, Some("Running")).await;
    assert_eq!(server.lock().unwrap().watches.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn giving_up_a_reading_loses_nothing() {
    let server = Shared::default();
    server.lock().unwrap().set("p", "Running");
    let watch = watch_of(&server);
    let mut follower = watch.follow("p");
    drop(futures::FutureExt::now_or_never(follower.next()));
    until(&mut follower, Some("Running")).await;
}

#[tokio::test(start_paused = true)]
async fn who_follows_all_hears_of_any_change_and_that_one_may_have_been_missed() {
    let server = Shared::default();
    let watch = watch_of(&server);
    let mut changes = watch.changes();
    changes.next().await; // The watch is there; what was before it has to be read.
    settle().await;

    server.lock().unwrap().set("whichever", "Running");
    changes.next().await;

    assert!(futures::FutureExt::now_or_never(changes.next()).is_none(), "nothing has changed since");
    drop(changes);
    sleep(LINGER * 2).await;
    assert!(server.lock().unwrap().watches[0].is_closed());
}
