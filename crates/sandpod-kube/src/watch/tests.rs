//! Followers of a fake API server.

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
    lists: usize,
    /// Each change, with the version after it.
    history: Vec<(u64, String)>,
    /// The watches that were started. Those that were ended are closed.
    watches: Vec<mpsc::UnboundedSender<Result<Frame<Bytes>, Infallible>>>,
    /// The number of calls that get no answer.
    silent: Vec<Call>,
    /// The number of lists that fail.
    failing: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Get,
    List,
    Watch,
}

impl Call {
    fn of(request: &Request<Body>) -> Self {
        if request.uri().path().starts_with(ONE_POD) {
            Self::Get
        } else if request.uri().query().is_some_and(|query| query.contains("watch=true")) {
            Self::Watch
        } else {
            Self::List
        }
    }
}

/// Stops following, as a caller does once its Pod runs.
const PATIENCE: Duration = Duration::from_secs(120);
const ONE_POD: &str = "/api/v1/namespaces/n/pods/";

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;
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
        self.say(&event);
        self.history.push((self.version, event));
    }

    fn say(&self, event: &str) {
        for watch in &self.watches {
            let _ = watch.unbounded_send(Ok(Frame::data(Bytes::from(event.to_owned()))));
        }
    }

    /// Returns no response if the connection is to hang.
    fn answer(&mut self, request: &Request<Body>) -> Option<Answer> {
        let call = Call::of(request);
        if let Some(place) = self.silent.iter().position(|silent| *silent == call) {
            self.silent.remove(place);
            return None;
        }
        Some(match call {
            Call::Get => {
                self.reads += 1;
                let name = request.uri().path().strip_prefix(ONE_POD).unwrap();
                self.pod(name).map_or_else(|| failure(404, "NotFound"), |pod| said(200, &pod))
            }
            Call::List => {
                self.lists += 1;
                if self.failing > 0 {
                    self.failing -= 1;
                    return Some(failure(500, "InternalError"));
                }
                let version = json!({ "resourceVersion": self.version.to_string() });
                said(200, &json!({ "metadata": version, "items": [] }))
            }
            Call::Watch => self.begin_watch(request.uri().query().unwrap()),
        })
    }

    /// Returns a watch of the changes after the requested version.
    fn begin_watch(&mut self, query: &str) -> Answer {
        assert!(query.contains("allowWatchBookmarks=true"), "{query}");
        let known = query.split('&').find_map(|part| part.strip_prefix("resourceVersion=")).unwrap();
        let known: u64 = known.parse().unwrap();
        let (sender, events) = mpsc::unbounded();
        for (_, event) in self.history.iter().filter(|(version, _)| *version > known) {
            sender.unbounded_send(Ok(Frame::data(Bytes::from(event.clone())))).unwrap();
        }
        self.watches.push(sender);
        Response::new(BodyExt::map_err(StreamBody::new(events), BoxError::from).boxed_unsync())
    }
}

fn failure(code: u16, reason: &str) -> Answer {
    said(code, &json!({ "status": "Failure", "code": code, "message": "", "reason": reason }))
}

fn said(code: u16, body: &Value) -> Answer {
    let body = Full::new(Bytes::from(body.to_string())).map_err(BoxError::from).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
    response
}

fn watch_of(server: &Shared) -> SharedWatch<Pod> {
    let server = server.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = server.lock().unwrap().answer(&request);
        async move {
            match answer {
                Some(answer) => Ok::<_, BoxError>(answer),
                None => std::future::pending().await,
            }
        }
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

/// Makes the API server forget the versions that the watches began at.
fn lose_watches(server: &Shared) {
    let mut server = server.lock().unwrap();
    let status = json!({ "status": "Failure", "code": 410, "message": "too old", "reason": "Expired" });
    server.say(&(json!({ "type": "ERROR", "object": status }).to_string() + "\n"));
    server.watches.clear();
}

async fn settle() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_hundred_followers_share_one_watch_and_each_gets_its_own_object() {
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
async fn changes_during_a_lost_watch_are_not_missed() {
    let server = Shared::default();
    server.lock().unwrap().set("p", "Pending");
    let watch = watch_of(&server);
    let mut follower = watch.follow("p");
    until(&mut follower, Some("Pending")).await;
    // Again, now that the watch is established.
    until(&mut follower, Some("Pending")).await;
    settle().await;

    lose_watches(&server);
    server.lock().unwrap().set("p", "Running");

    until(&mut follower, Some("Running")).await;
    assert_eq!(server.lock().unwrap().watches.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_watch_without_followers_ends_and_the_next_follower_starts_another() {
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
async fn a_follower_of_all_objects_gets_each_change_and_possible_gaps() {
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

#[tokio::test(start_paused = true)]
async fn a_silently_cut_watch_is_restarted_at_its_last_version() {
    let server = Shared::default();
    let watch = watch_of(&server);
    let mut follower = watch.follow("p");
    until(&mut follower, None).await;
    // Again, now that the watch is established.
    until(&mut follower, None).await;
    settle().await;

    let _cut = std::mem::take(&mut server.lock().unwrap().watches);
    server.lock().unwrap().set("p", "Running");

    let since = Instant::now();
    until(&mut follower, Some("Running")).await;
    assert!(since.elapsed() < PATIENCE, "{:?}", since.elapsed());
    let server = server.lock().unwrap();
    assert_eq!((server.lists, server.watches.len()), (1, 1), "it goes on from the version that it knows");
}

#[tokio::test(start_paused = true)]
async fn a_watch_with_only_bookmarks_stays_open() {
    let server = Shared::default();
    let watch = watch_of(&server);
    let mut follower = watch.follow("p");
    until(&mut follower, None).await;
    for _ in 0..10 {
        sleep(Duration::from_secs(60)).await;
        let bookmark = json!({ "kind": "Pod", "apiVersion": "v1", "metadata": { "resourceVersion": "0" } });
        let event = json!({ "type": "BOOKMARK", "object": bookmark }).to_string() + "\n";
        server.lock().unwrap().say(&event);
    }
    assert_eq!(server.lock().unwrap().watches.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_request_is_cancelled_and_repeated() {
    for silent in [Call::List, Call::Watch] {
        let server = Shared::default();
        server.lock().unwrap().silent.push(silent);
        let watch = watch_of(&server);
        let mut follower = watch.follow("p");
        until(&mut follower, None).await;
        sleep(crate::call::LIMIT * 2).await;
        server.lock().unwrap().set("p", "Running");
        timeout(Duration::from_secs(1), until(&mut follower, Some("Running"))).await.unwrap();
    }
    let server = Shared::default();
    server.lock().unwrap().silent.push(Call::Get);
    let mut follower = watch_of(&server).follow("p");
    let error = timeout(PATIENCE, follower.next()).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("no answer within 30s"), "{error}");
    until(&mut follower, None).await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_stood_is_begun_again_at_once_however_long_it_took_to_begin() {
    let server = Shared::default();
    server.lock().unwrap().failing = 20;
    let mut changes = watch_of(&server).changes();
    changes.next().await;
    sleep(Duration::from_secs(60)).await;

    lose_watches(&server);

    let lost = Instant::now();
    changes.next().await;
    assert!(lost.elapsed() < PAUSES.0 * 2, "{:?}", lost.elapsed());
}
