//! One request: authorize it, find its Pod, forward it, and stream the answer back.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, request};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::client::legacy;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;

use crate::access::reviews::User;
use crate::access::{Access, Caller};
use crate::headers::{self, Origin};
use crate::limits::{Admission, InFlight, Limits};
use crate::metrics::{self, Metrics};
use crate::preview::{self, Domain, Preview, Shared};
use crate::refusal::{Reason, Refusal};
use crate::registry::Registry;
use crate::route::{Route, missing, resolve, route, unknown};
use crate::target::{SandboxRef, Target};
use crate::tunnel::{self, TunnelLimits};
use crate::upstream::{Body, BoxError, Upstream};
use crate::wake::Wake;

/// How a router treats requests.
#[derive(Clone)]
pub struct Options {
    /// How many requests may be in flight, and how large they may be.
    pub limits: Limits,
    /// The longest `X-Sandbox-Timeout`. Without the header a request has no timeout.
    pub max_timeout: Duration,
    /// The limits of a connection that changed its protocol, such as a WebSocket.
    pub tunnels: TunnelLimits,
    /// The domain below which host names are previews. None: there are no previews.
    pub domain: Option<Domain>,
    /// Resumes suspended sandboxes. None: requests to them are refused.
    pub wake: Option<Wake>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            max_timeout: Duration::from_secs(24 * 3600),
            tunnels: TunnelLimits::default(),
            domain: None,
            wake: None,
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

/// A request as the access log and the metrics have it. It is written when it is dropped, so that a request whose caller
/// hangs up before the answer is written, too.
struct Record {
    metrics: Arc<Metrics>,
    started: Instant,
    method: Method,
    trace: Option<String>,
    client: IpAddr,
    /// None until there is an answer.
    status: Option<StatusCode>,
    note: Note,
    _in_flight: metrics::InFlight,
}

/// The fields of a [`Record`] that are known after the authorization.
#[derive(Default)]
struct Note {
    /// Empty unless the request is admitted and its sandbox exists: a caller cannot make series of metrics.
    namespace: String,
    id: String,
    port: u16,
    caller: Option<Caller>,
    reason: Option<Reason>,
}

/// The connection that requests come by.
pub(crate) struct Connection {
    origin: Origin,
    /// The user of a verified client certificate.
    user: Option<User>,
    /// Cancelled when a request was admitted: until then its caller is a stranger.
    pub(crate) admitted: CancellationToken,
    /// Counts the connection as open, also while it is a tunnel.
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    pub(crate) fn new(origin: Origin, user: Option<User>, permit: OwnedSemaphorePermit) -> Self {
        Self { origin, user, admitted: CancellationToken::new(), _permit: permit }
    }
}

/// A request that was admitted.
struct Admitted {
    target: Target,
    sandbox: Option<SandboxRef>,
    caller: Caller,
    /// The end of a shared link.
    end: Option<Instant>,
}

/// The outcome of the authorization.
enum Decision {
    Admitted(Admitted),
    /// The router answers itself: the redirect of a shared link.
    Answer(Response<Body>),
}

impl Record {
    fn new(request: &Request<Incoming>, metrics: &Arc<Metrics>, client: IpAddr) -> Self {
        Self {
            metrics: metrics.clone(),
            started: Instant::now(),
            method: request.method().clone(),
            trace: headers::trace_id(request.headers()),
            client,
            status: None,
            note: Note::default(),
            _in_flight: metrics.enter(),
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let status = self.status.map_or(metrics::HUNG_UP, |status| status.as_u16());
        let (note, took) = (&self.note, self.started.elapsed());
        self.metrics.note_request(&self.method, status, &note.namespace, took);
        let caller = note.caller.as_ref().map(ToString::to_string);
        let reason = note.reason.map(|reason| reason.to_string());
        tracing::info!(
            method = %self.method, status, namespace = note.namespace, sandbox = note.id, port = note.port, caller, reason,
            trace = self.trace, client = %self.client, milliseconds = took.as_secs_f64() * 1000.0, "request"
        );
    }
}

impl Router {
    /// A router for the sandboxes in `registry`.
    #[must_use]
    pub fn new(registry: Arc<Registry>, access: Access, options: Options, metrics: Arc<Metrics>) -> Self {
        let upstream = Upstream::new(&metrics);
        let (tunnels, ending) = (TaskTracker::new(), CancellationToken::new());
        let in_flight = InFlight::default();
        Self(Arc::new(Inner { registry, access, options, in_flight, metrics, upstream, tunnels, ending }))
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

    /// Answers a request.
    pub(crate) async fn handle(
        &self,
        request: Request<Incoming>,
        connection: &Arc<Connection>,
    ) -> Response<Body> {
        let is_http1 = request.version() < Version::HTTP_2;
        let mut record = Record::new(&request, &self.0.metrics, connection.origin.address);
        let answer = self.forward(request, connection, &mut record.note).await;
        let response = answer.unwrap_or_else(|refusal| self.refuse(&refusal, &mut record.note, is_http1));
        record.status = Some(response.status());
        response
    }

    fn refuse(&self, refusal: &Refusal, note: &mut Note, is_http1: bool) -> Response<Body> {
        note.reason = Some(refusal.reason);
        if refusal.status.is_server_error() {
            self.0.metrics.note_upstream_error(&note.namespace, refusal.reason.label());
        }
        let mut response = refusal.response().map(|body| body.map_err(|never| match never {}).boxed());
        // A caller that has not proved itself keeps no connection.
        let is_stranger = note.caller.is_none() && refusal.status.is_client_error();
        if is_stranger && is_http1 {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    async fn forward(
        &self,
        request: Request<Incoming>,
        connection: &Arc<Connection>,
        note: &mut Note,
    ) -> Result<Response<Body>, Refusal> {
        let inner = &*self.0;
        let (head, body) = request.into_parts();
        if head.method == Method::CONNECT {
            return Err(Refusal::invalid("The router does not tunnel by CONNECT."));
        }
        if head.headers.get_all(HOST).iter().count() > 1 {
            return Err(Refusal::invalid("The request has more than one Host header."));
        }
        let preview = self.preview(&head)?;
        if preview.is_none() && is_health_check(&head) {
            return Ok(health(head.version));
        }
        let admitted = match self.admit(&head, preview.as_ref(), connection.user.as_ref()).await {
            Ok(Decision::Admitted(admitted)) => admitted,
            Ok(Decision::Answer(answer)) => return Ok(answer),
            Err(refusal) => {
                if matches!(refusal.reason, Reason::Unauthenticated | Reason::Forbidden) {
                    inner.metrics.note_decision("", false);
                }
                return Err(refusal);
            }
        };
        let Admitted { target, sandbox, caller, end } = admitted;
        let known = sandbox.as_ref().filter(|sandbox| inner.registry.contains(sandbox));
        *note = Note {
            namespace: known.map(|sandbox| sandbox.namespace.clone()).unwrap_or_default(),
            id: target.name.to_string(),
            port: target.port,
            caller: Some(caller.clone()),
            reason: None,
        };
        inner.metrics.note_decision(&note.namespace, true);
        connection.admitted.cancel();
        if let Some(preview) = &preview
            && head.uri.path() == preview::SHARE_PATH
        {
            return self.share(&head, preview, &caller);
        }
        let deadline = target.timeout.map(|timeout| Instant::now() + timeout.min(inner.options.max_timeout));
        let admission = match &sandbox {
            Some(sandbox) => Some(inner.in_flight.enter(sandbox, &caller, &inner.options.limits)?),
            None => None,
        };
        let route = tokio::select! {
            route = self.find(&target, sandbox.as_ref()) => route?,
            () = until(deadline) => return Err(late(&target)),
            () = until(end) => return Err(Refusal::unauthenticated()),
        };

        let mut request = Request::from_parts(head, body);
        let switch = headers::upgrade(request.headers()).map(|_| hyper::upgrade::on(&mut request));
        let request = prepare(request, &route, connection.origin, &inner.options.limits, target.is_preview)?;
        let is_grpc = is_grpc(request.headers());
        let answer = tokio::select! {
            answer = inner.upstream.send(request, is_grpc) => {
                answer.map_err(|error| failed(&target, &error, &inner.options.limits))
            }
            () = route.gone.cancelled() => {
                Err(Refusal::backend(&target.name.to_string(), Reason::ConnectionLost))
            }
            () = until(deadline) => Err(late(&target)),
            () = until(end) => Err(Refusal::unauthenticated()),
        };
        let switch = switch.map(|switch| (switch, connection.clone()));
        self.answer(answer?, &target, switch, route.gone, end, admission)
    }

    /// The preview that a request's host names.
    fn preview(&self, head: &request::Parts) -> Result<Option<Preview>, Refusal> {
        let host = preview::host(&head.uri, &head.headers);
        let domain = self.0.options.domain.as_ref();
        domain.zip(host).and_then(|(domain, host)| domain.read(host)).transpose()
    }

    /// Authorizes a request.
    async fn admit(
        &self,
        head: &request::Parts,
        preview: Option<&Preview>,
        certificate: Option<&User>,
    ) -> Result<Decision, Refusal> {
        let inner = &*self.0;
        if preview.is_some() {
            preview::check_source(head)?;
        }
        let target = match preview {
            Some(preview) => Target::of_preview(preview, &head.headers)?,
            None => Target::of(&head.headers)?,
        };
        // A shared link opens the preview, and does not sign further links.
        if let (Some(preview), Some(keys)) = (preview, &inner.access.share_keys)
            && head.uri.path() != preview::SHARE_PATH
        {
            match preview::shared(head, preview, keys)? {
                Some(Shared::Link(parts)) => {
                    return Ok(Decision::Answer(Response::from_parts(*parts, empty())));
                }
                Some(Shared::Cookie(share)) => {
                    return Ok(Decision::Admitted(Admitted {
                        caller: Caller::LinkHolder(preview.sandbox.clone()),
                        sandbox: Some(preview.sandbox.clone()),
                        end: Some(Instant::now() + share.remaining()),
                        // A sandbox that was created later with the same name is another one.
                        target: Target { uid: Some(share.uid().to_owned()), ..target },
                    }));
                }
                None => {}
            }
        }
        let identity = inner.access.authenticate(&head.headers, certificate).await?;
        let sandbox = resolve(&target, &inner.registry);
        let claim = sandbox.as_ref().and_then(|sandbox| inner.registry.claim_of(sandbox));
        let caller = inner.access.authorize(identity, &target, sandbox.as_ref(), claim).await;
        let caller = caller.map_err(|refusal| match refusal.reason {
            // The sandbox, or its claim, may not be known yet. For known ones the answer is the same.
            Reason::Forbidden if !inner.registry.is_current() => unknown(&target.name.to_string()),
            _ => refusal,
        })?;
        Ok(Decision::Admitted(Admitted { target, sandbox, caller, end: None }))
    }

    /// Signs a shared link to a preview.
    fn share(
        &self,
        head: &request::Parts,
        preview: &Preview,
        caller: &Caller,
    ) -> Result<Response<Body>, Refusal> {
        if head.method != Method::POST {
            return Err(Refusal::invalid("A shared link is made by POST."));
        }
        // The holder of a scoped token could extend it by a link.
        if !matches!(caller, Caller::User(_)) {
            return Err(Refusal::forbidden());
        }
        let Some(keys) = &self.0.access.share_keys else {
            return Err(Refusal::invalid(
                "This router signs no shared links: it has no --share-secret-file.",
            ));
        };
        let lifetime = preview::lifetime(&head.uri)?;
        let registry = &self.0.registry;
        let uid = registry.uid_of(&preview.sandbox);
        let uid = uid.ok_or_else(|| missing(&preview.sandbox.name, registry))?;
        let (token, expires_at) = keys.sign_share(preview, &uid, lifetime);
        let path = format!("/?{}={token}", preview::PARAMETER);
        let mut response = json_response(json!({ "path": path, "expires_at": expires_at }).to_string());
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }

    /// Finds the Pod, and waits for it if the sandbox can be woken.
    async fn find(&self, target: &Target, sandbox: Option<&SandboxRef>) -> Result<Route, Refusal> {
        let inner = &*self.0;
        let found = route(target, sandbox, &inner.registry);
        match (found, &inner.options.wake, sandbox) {
            (Err(refusal), Some(wake), Some(sandbox)) if refusal.reason.is_temporary() => {
                wake.wake(target, sandbox, &inner.registry, &inner.metrics).await
            }
            (found, ..) => found,
        }
    }

    /// The sandbox's answer as the caller gets it. It ends with the shared link, at `end`.
    fn answer(
        &self,
        mut response: Response<Incoming>,
        target: &Target,
        switch: Option<(OnUpgrade, Arc<Connection>)>,
        gone: CancellationToken,
        end: Option<Instant>,
        admission: Option<Admission>,
    ) -> Result<Response<Body>, Refusal> {
        let protocol = response.headers().get(UPGRADE).cloned();
        headers::remove_hop_by_hop(response.headers_mut());
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let body = |body| Streamed::new(body, gone, end, admission).boxed();
            return Ok(response.map(body));
        }
        let (Some((caller, connection)), Some(protocol)) = (switch, protocol) else {
            let id = target.name.to_string();
            tracing::warn!(sandbox = id, "the sandbox switched protocols without a request to do so");
            return Err(Refusal::backend(&id, Reason::ConnectionLost));
        };
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        response.headers_mut().insert(UPGRADE, protocol);
        let sandbox = hyper::upgrade::on(&mut response);
        let (limits, ending) = (self.0.options.tunnels, self.0.ending.clone());
        let metrics = self.0.metrics.clone();
        self.0.tunnels.spawn(async move {
            let ends = [gone, ending];
            metrics.tunnels.inc();
            tokio::select! {
                () = tunnel::run(caller, sandbox, limits, &ends) => {}
                () = until(end) => {}
            }
            metrics.tunnels.dec();
            drop((admission, connection));
        });
        Ok(response.map(|_| empty()))
    }
}

/// The request as the sandbox gets it. Path and query stay as the caller wrote them.
fn prepare(
    request: Request<Incoming>,
    route: &Route,
    origin: Origin,
    limits: &Limits,
    is_preview: bool,
) -> Result<Request<Body>, Refusal> {
    let max_body_bytes = limits.body_bytes;
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
    if is_preview {
        preview::remove_cookie(&mut parts.headers);
    }
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

/// Whether a request is gRPC over HTTP/2. `application/grpc-web` goes over HTTP/1.1.
fn is_grpc(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let rest = content_type.and_then(|value| value.strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b';' | b'+')))
}

/// The refusal of a request that got no answer.
fn failed(target: &Target, error: &legacy::Error, limits: &Limits) -> Refusal {
    let id = target.name.to_string();
    tracing::debug!(%error, sandbox = id, "the sandbox did not answer");
    if is_over_limit(error) {
        return Refusal::too_large(limits.body_bytes);
    }
    let reason = if error.is_connect() { Reason::ConnectFailed } else { Reason::ConnectionLost };
    Refusal::backend(&id, reason)
}

fn is_over_limit(error: &legacy::Error) -> bool {
    let first: Option<&(dyn std::error::Error + 'static)> = Some(error);
    std::iter::successors(first, |error| error.source()).any(<dyn std::error::Error>::is::<LengthLimitError>)
}

fn late(target: &Target) -> Refusal {
    Refusal::timeout(&target.name.to_string(), target.timeout.unwrap_or_default().as_secs_f64())
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Probes of load balancers have no headers of the contract. A sandbox's own `/healthz` can only be reached as a preview.
fn is_health_check(head: &request::Parts) -> bool {
    head.uri.path() == "/healthz" && [Method::GET, Method::HEAD].contains(&head.method)
}

/// A caller that has not proved itself keeps no connection.
fn health(version: Version) -> Response<Body> {
    let mut response = json_response(r#"{"status":"ok"}"#.to_owned());
    if version < Version::HTTP_2 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn json_response(text: String) -> Response<Body> {
    let mut response = Response::new(full(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub(crate) fn full(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).map_err(|never| match never {}).boxed()
}

fn empty() -> Body {
    full(Bytes::new())
}

/// The body of an answer, which ends with an error when its Pod is gone or its shared link has ended.
struct Streamed {
    body: Incoming,
    gone: Pin<Box<WaitForCancellationFutureOwned>>,
    end: Option<Pin<Box<Sleep>>>,
    /// The request is in flight until its answer has ended.
    _admission: Option<Admission>,
}

impl Streamed {
    fn new(
        body: Incoming,
        gone: CancellationToken,
        end: Option<Instant>,
        admission: Option<Admission>,
    ) -> Self {
        let end = end.map(|end| Box::pin(sleep_until(end)));
        Self { body, gone: Box::pin(gone.cancelled_owned()), end, _admission: admission }
    }
}

impl http_body::Body for Streamed {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        // A sandbox that always has a frame must not outlast the link.
        if let Some(end) = &mut self.end
            && end.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Some(Err("the shared link has ended".into())));
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)));
        }
        ready!(self.gone.as_mut().poll(context));
        Poll::Ready(Some(Err("the sandbox is gone".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_grpc_itself_goes_over_http2() {
        for (content_type, expected) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc; charset=utf-8", true),
            ("application/grpc-web", false),
            ("application/grpc-web+proto", false),
            ("application/json", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
            assert_eq!(is_grpc(&headers), expected, "{content_type}");
        }
    }
}
