//! Retries refusals by an API server that has just started, which forbids everything until it has loaded its rules. A
//! call that was allowed before is repeated for a while.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Either, Full, Limited};
use kube::client::Body;
use tokio::time::{Instant, sleep};
use tower::{BoxError, Layer, Service, ServiceExt as _};

/// How long a refusal is retried, and how often.
const GRACE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(250);
/// More bytes than the body of a refusal has.
const MAX_REFUSAL: usize = 64 << 10;
/// How many allowed calls are remembered before the memory is cleared.
const MAX_RIGHTS: usize = 4096;

/// The calls that a client was allowed so far.
#[derive(Clone, Default)]
pub(super) struct Grace(Arc<Mutex<HashSet<String>>>);

impl<S> Layer<S> for Grace {
    type Service = Forgiving<S>;

    fn layer(&self, inner: S) -> Forgiving<S> {
        Forgiving { inner, allowed: self.clone() }
    }
}

impl Grace {
    fn rights(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, right: &str) {
        let mut rights = self.rights();
        if !rights.contains(right) {
            if rights.len() >= MAX_RIGHTS {
                rights.clear();
            }
            rights.insert(right.to_owned());
        }
    }
}

/// A layer that retries a refusal of what was allowed before.
#[derive(Clone)]
pub(super) struct Forgiving<S> {
    inner: S,
    allowed: Grace,
}

type Answer<B> = Response<Either<B, Full<Bytes>>>;

impl<S, B> Service<Request<Body>> for Forgiving<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Answer<B>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Answer<B>, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // The service that is ready has to take the call, not its clone.
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        Box::pin(ask(inner, self.allowed.clone(), request))
    }
}

async fn ask<S, B>(mut service: S, allowed: Grace, mut request: Request<Body>) -> Result<Answer<B>, BoxError>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let right = right(request.method(), request.uri());
    let end = Instant::now() + GRACE;
    loop {
        let again = copy(&request);
        let response = service.call(request).await?;
        if response.status() != StatusCode::FORBIDDEN {
            if response.status().is_success() {
                allowed.note(&right);
            }
            return Ok(response.map(Either::Left));
        }
        let doubted = Instant::now() < end && allowed.rights().contains(&right);
        let Some(again) = again.filter(|_| doubted) else {
            return Ok(response.map(Either::Left));
        };
        let (parts, body) = response.into_parts();
        let said = Limited::new(body, MAX_REFUSAL).collect().await?.to_bytes();
        if !is_missing_right(&said) {
            return Ok(Response::from_parts(parts, Either::Right(Full::new(said))));
        }
        request = again;
        sleep(PAUSE).await;
        service.ready().await?;
    }
}

/// Whether it is a refusal by RBAC, and not by an admission policy.
fn is_missing_right(said: &[u8]) -> bool {
    said.windows(8).any(|words| words == b" cannot ")
}

/// The verb and resource of a call, without the name of the object.
fn right(method: &Method, uri: &Uri) -> String {
    let mut parts: Vec<_> = uri.path().split('/').collect();
    let resource = match parts.iter().position(|part| *part == "namespaces") {
        Some(namespaces) if parts.len() > namespaces + 2 => namespaces + 2,
        _ => parts.len(),
    };
    if let Some(name) = parts.get_mut(resource + 1) {
        *name = "*";
    }
    let watch = if uri.query().is_some_and(|query| query.contains("watch=")) { " watch" } else { "" };
    format!("{method} {}{watch}", parts.join("/"))
}

/// Clones a request. None if its body can be sent only once.
pub(super) fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let mut copy = Request::new(request.body().try_clone()?);
    copy.method_mut().clone_from(request.method());
    copy.uri_mut().clone_from(request.uri());
    *copy.version_mut() = request.version();
    copy.headers_mut().clone_from(request.headers());
    copy.extensions_mut().clone_from(request.extensions());
    Some(copy)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const NO_RIGHT: (u16, &str) = (403, r#"{"message":"pods is forbidden: User \"u\" cannot get pods"}"#);
    const POLICY: (u16, &str) = (403, r#"{"message":"pods \"p\" is forbidden: violates PodSecurity"}"#);
    const FINE: (u16, &str) = (200, "{}");
    const POD: &str = "/api/v1/namespaces/n/pods/p";

    /// Sends requests to a server with these answers. Returns the statuses, and the number of unused answers.
    async fn asked(times: usize, answers: &[(u16, &'static str)]) -> (Vec<u16>, usize) {
        let answers: Arc<Mutex<VecDeque<_>>> = Arc::new(Mutex::new(answers.iter().copied().collect()));
        let left = answers.clone();
        let server = tower::service_fn(move |_: Request<Body>| {
            let (status, text) = left.lock().unwrap().pop_front().unwrap();
            let response = Response::builder().status(status).body(Full::new(Bytes::from(text)));
            std::future::ready(response.map_err(BoxError::from))
        });
        let mut client = Grace::default().layer(server);
        let mut got = Vec::new();
        for _ in 0..times {
            let request = Request::get(POD).body(Body::empty()).unwrap();
            got.push(client.ready().await.unwrap().call(request).await.unwrap().status().as_u16());
        }
        let left = answers.lock().unwrap().len();
        (got, left)
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_request_that_was_allowed_before_is_retried() {
        assert_eq!(asked(2, &[FINE, NO_RIGHT, NO_RIGHT, FINE]).await, (vec![200, 200], 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_was_never_allowed_is_refused_at_once() {
        assert_eq!(asked(1, &[NO_RIGHT, FINE]).await, (vec![403], 1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_admission_policys_refusal_is_believed_at_once() {
        assert_eq!(asked(2, &[FINE, POLICY, FINE]).await, (vec![200, 403], 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_right_that_is_taken_away_is_believed_after_a_while() {
        let mut answers = vec![NO_RIGHT; 100];
        answers[0] = FINE;
        let began = Instant::now();
        let (got, _) = asked(2, &answers).await;
        assert_eq!(got, [200, 403]);
        assert!(began.elapsed() >= GRACE && began.elapsed() < GRACE + 2 * PAUSE);
    }

    #[test]
    fn a_right_is_of_a_kind_and_not_of_an_object() {
        let get = |path: &str| right(&Method::GET, &path.parse().unwrap());
        assert_eq!(get(POD), get("/api/v1/namespaces/n/pods/other"));
        assert_ne!(get(POD), get("/api/v1/namespaces/n/pods"));
        assert_ne!(get(POD), get("/api/v1/namespaces/n/pods/p/exec"));
        assert_ne!(get(POD), get("/api/v1/namespaces/m/pods/p"));
        assert_ne!(get("/api/v1/namespaces/n/pods"), get("/api/v1/namespaces/n/pods?watch=true"));
        assert_ne!(get(POD), right(&Method::DELETE, &POD.parse().unwrap()));
    }
}
