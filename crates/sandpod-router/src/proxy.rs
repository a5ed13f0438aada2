//! One request: admit it, find its Pod, forward it, and stream the answer back.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::client::legacy;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;

use crate::access::reviews::User;
use crate::access::{Access, Caller};
use crate::headers::{self, Origin};
use crate::limits::{Admission, InFlight, Limits};
use crate::metrics::Metrics;
use crate::refusal::{Reason, Refusal};
use crate::registry::Registry;
use crate::route::{Route, route};
use crate::target::Target;
use crate::tunnel::{self, TunnelLimits};
use crate::upstream::{Body, BoxError, Upstream};

/// How a router treats requests.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How many requests may be in flight, and how large they may be.
    pub limits: Limits,
    /// The longest `X-Sandbox-Timeout`. Without the header a request has no timeout.
    pub max_timeout: Duration,
    /// The limits of a connection that changed its protocol, such as a WebSocket.
    pub tunnels: TunnelLimits,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            max_timeout: Duration::from_secs(24 * 3600),
            tunnels: TunnelLimits::default(),
        }
    }
}

/// Forwards requests to sandboxes. Clones are the same router.
#[derive(Clone)]
pub struct Router(Arc<Inner>);

struct Inner {
    registry: Arc<Registry>,
    access: Access,
    options: Options,
    in_flight: InFlight,
    metrics: Arc<Metrics>,
    upstream: Upstream,
    tunnels: TaskTracker,
    ending: CancellationToken,
}

/// What the access log and the metrics have about a request.
#[derive(Default)]
struct Note {
    /// Empty until the request is admitted: a caller without a right cannot make series of metrics.
    namespace: String,
    id: String,
    port: u16,
    caller: Option<Caller>,
}

impl Router {
    /// A router for the sandboxes in `registry`.
    #[must_use]
    pub fn new(registry: Arc<Registry>, access: Access, options: Options) -> Self {
        let metrics = Arc::new(Metrics::default());
        let upstream = Upstream::new(&metrics);
        let (tunnels, ending) = (TaskTracker::new(), CancellationToken::new());
        Self(Arc::new(Inner {
            registry,
            access,
            options,
            in_flight: InFlight::default(),
            metrics,
            upstream,
            tunnels,
            ending,
        }))
    }

    /// The router's metrics.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    /// The sandboxes that it reaches.
    #[must_use]
    pub fn registry(&self) -> &Arc<Registry> {
        &self.0.registry
    }

    /// Waits until every tunnel has ended. Accept no more requests before.
    pub async fn drained(&self) {
        self.0.tunnels.close();
        self.0.tunnels.wait().await;
    }

    /// Ends the tunnels that are still open.
    pub fn end_tunnels(&self) {
        self.0.ending.cancel();
    }

    /// Answers a request. `certificate` is the user of a verified client certificate.
    pub(crate) async fn handle(
        &self,
        request: Request<Incoming>,
        origin: Origin,
        certificate: Option<&User>,
    ) -> Response<Body> {
        if is_health_check(&request) {
            return health();
        }
        let started = Instant::now();
        let method = request.method().clone();
        let mut note = Note::default();
        self.0.metrics.in_flight.inc();
        let answer = self.forward(request, origin, certificate, &mut note).await;
        let response = answer.unwrap_or_else(|refusal| self.refuse(&refusal, &note));
        self.0.metrics.in_flight.dec();
        let (status, took) = (response.status(), started.elapsed());
        self.0.metrics.note_request(&method, status, &note.namespace, took);
        let caller = note.caller.map(|caller| caller.to_string());
        tracing::info!(
            %method, status = status.as_u16(), namespace = note.namespace, sandbox = note.id, port = note.port,
            caller, milliseconds = took.as_secs_f64() * 1000.0, "request"
        );
        response
    }

    fn refuse(&self, refusal: &Refusal, note: &Note) -> Response<Body> {
        if refusal.status.is_server_error() {
            let reason = format!("{:?}", refusal.reason);
            self.0.metrics.note_upstream_error(&note.namespace, &reason);
        }
        refusal.response().map(|body| body.map_err(|never| match never {}).boxed())
    }

    async fn forward(
        &self,
        mut request: Request<Incoming>,
        origin: Origin,
        certificate: Option<&User>,
        note: &mut Note,
    ) -> Result<Response<Body>, Refusal> {
        let inner = &*self.0;
        if request.method() == Method::CONNECT {
            return Err(Refusal::invalid("The router does not tunnel by CONNECT."));
        }
        let target = Target::of(request.headers())?;
        let caller = inner.access.admit(request.headers(), certificate, &target).await;
        if let Err(refusal) = &caller
            && refusal.status.is_client_error()
        {
            inner.metrics.note_decision("", false);
        }
        let caller = caller?;
        inner.metrics.note_decision(&target.namespace, true);
        *note = Note {
            namespace: target.namespace.clone(),
            id: target.id.clone(),
            port: target.port,
            caller: Some(caller.clone()),
        };
        let admission = inner.in_flight.enter(&target, &caller, &inner.options.limits)?;
        let route = route(&target, &inner.registry)?;

        let switch = headers::upgrade(request.headers()).map(|_| hyper::upgrade::on(&mut request));
        let deadline = target.timeout.filter(|_| switch.is_none());
        let deadline = deadline.map(|timeout| Instant::now() + timeout.min(inner.options.max_timeout));
        let request = prepare(request, &route, origin, inner.options.limits.body_bytes)?;
        let is_grpc = is_grpc(request.headers());
        let answer = tokio::select! {
            answer = inner.upstream.send(request, is_grpc) => answer.map_err(|error| failed(&target, &error, &inner.options.limits)),
            () = route.gone.cancelled() => Err(Refusal::backend(&target.id, Reason::ConnectionLost)),
            () = until(deadline) => {
                Err(Refusal::timeout(&target.id, target.timeout.unwrap_or_default().as_secs_f64()))
            }
        };
        self.answer(answer?, &target.id, switch, route.gone, deadline, admission)
    }

    /// The sandbox's answer as the caller gets it.
    fn answer(
        &self,
        mut response: Response<Incoming>,
        id: &str,
        switch: Option<OnUpgrade>,
        gone: CancellationToken,
        deadline: Option<Instant>,
        admission: Admission,
    ) -> Result<Response<Body>, Refusal> {
        let protocol = response.headers().get(UPGRADE).cloned();
        headers::remove_hop_by_hop(response.headers_mut());
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let body = |body| Streamed::new(body, gone, deadline, admission).boxed();
            return Ok(response.map(body));
        }
        let (Some(caller), Some(protocol)) = (switch, protocol) else {
            tracing::warn!(sandbox = id, "the sandbox switched protocols without a request to do so");
            return Err(Refusal::backend(id, Reason::ConnectionLost));
        };
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        response.headers_mut().insert(UPGRADE, protocol);
        let sandbox = hyper::upgrade::on(&mut response);
        let (limits, ending) = (self.0.options.tunnels, self.0.ending.clone());
        self.0.tunnels.spawn(async move {
            let ends = [gone, ending];
            tunnel::run(caller, sandbox, limits, &ends).await;
            drop(admission);
        });
        Ok(response.map(|_| empty()))
    }
}

/// The request as the sandbox gets it. Path and query stay as the caller wrote them.
fn prepare(
    request: Request<Incoming>,
    route: &Route,
    origin: Origin,
    max_body_bytes: u64,
) -> Result<Request<Body>, Refusal> {
    let (mut parts, body) = request.into_parts();
    let length =
        parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > max_body_bytes) {
        return Err(Refusal::too_large(max_body_bytes));
    }
    let host = parts.headers.get(HOST).cloned().or_else(|| {
        parts.uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok())
    });
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let uri =
        Uri::builder().scheme("http").authority(route.upstream.to_string()).path_and_query(path).build();
    parts.uri = uri.map_err(|_| Refusal::invalid("The request's target is not a path."))?;
    headers::prepare_request(&mut parts.headers, host, origin);
    if is_grpc(&parts.headers) {
        parts.version = Version::HTTP_2;
    } else {
        parts.version = Version::HTTP_11;
        if let Ok(host) = HeaderValue::from_str(&route.upstream.to_string()) {
            parts.headers.insert(HOST, host);
        }
    }
    let body = match usize::try_from(max_body_bytes) {
        Ok(limit) if body.size_hint().exact().is_none() => Limited::new(body, limit).boxed(),
        _ => body.map_err(BoxError::from).boxed(),
    };
    Ok(Request::from_parts(parts, body))
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// Why a request got no answer.
fn failed(target: &Target, error: &legacy::Error, limits: &Limits) -> Refusal {
    tracing::debug!(%error, sandbox = target.id, "the sandbox did not answer");
    if is_over_limit(error) {
        return Refusal::too_large(limits.body_bytes);
    }
    let reason = if error.is_connect() { Reason::ConnectFailed } else { Reason::ConnectionLost };
    Refusal::backend(&target.id, reason)
}

fn is_over_limit(error: &legacy::Error) -> bool {
    let first: Option<&(dyn std::error::Error + 'static)> = Some(error);
    std::iter::successors(first, |error| error.source()).any(<dyn std::error::Error>::is::<LengthLimitError>)
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Probes of load balancers have no headers of the contract. A sandbox's own `/healthz` cannot be reached, as in the original router.
fn is_health_check(request: &Request<Incoming>) -> bool {
    request.uri().path() == "/healthz" && [Method::GET, Method::HEAD].contains(request.method())
}

fn health() -> Response<Body> {
    let mut response = Response::new(full(r#"{"status":"ok"}"#));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub(crate) fn full(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).map_err(|never| match never {}).boxed()
}

fn empty() -> Body {
    full(Bytes::new())
}

/// The body of an answer, which ends with an error when its Pod is gone or its time is up.
struct Streamed {
    body: Incoming,
    gone: Pin<Box<WaitForCancellationFutureOwned>>,
    deadline: Option<Pin<Box<Sleep>>>,
    /// The request is in flight until its answer has ended.
    _admission: Admission,
}

impl Streamed {
    fn new(body: Incoming, gone: CancellationToken, deadline: Option<Instant>, admission: Admission) -> Self {
        let deadline = deadline.map(|deadline| Box::pin(sleep_until(deadline)));
        Self { body, gone: Box::pin(gone.cancelled_owned()), deadline, _admission: admission }
    }
}

impl http_body::Body for Streamed {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)));
        }
        if self.gone.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err("the sandbox is gone".into())));
        }
        if let Some(deadline) = &mut self.deadline {
            ready!(deadline.as_mut().poll(context));
            return Poll::Ready(Some(Err("the time of the request is up".into())));
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
