//! The ways to a guest, and the one that is taken.
//!
//! The first mode that works is taken and noted on the claim, with what kept us from those before it. A mode works when the
//! guest has said its first byte there, or a stock runtime that stands for one has answered ([`stock`]).
//!
//! A guest that is reached over the network wants a token. Where nothing gives this process the secret of the template's
//! guests, it is introduced by exec ([`TokenHandover`]): Bind goes through an exec stream and takes a token of this process's
//! own to the guest, and all later streams take the mode.

use std::io::Cursor;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use sandpod_client::{ByteStream, DialError, Dialer, Token};
use sandpod_dialect::Dialect;
use sandpod_kube::exec::{self, PodRef};
use sandpod_kube::k8s_openapi::api::core::v1::{Container, Pod};
use sandpod_kube::kube::ResourceExt;
use tokio::io::{AsyncReadExt as _, copy_bidirectional, duplex, join, split};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::claims::{CONNECTION, CONNECTION_REASON, DURABLE_DIRS};
use super::readiness::{self, ClaimState};
use super::suspend::suspended;
use super::tokens::{Key, Tokens};
use super::{AgentSandbox, refused, stock};
use crate::backend::kubernetes::anchor::POD_UID;
use crate::backend::kubernetes::api::within;
use crate::backend::kubernetes::delivery::{DELIVERY, REASON};
use crate::backend::kubernetes::guest::BOOT;
use crate::backend::kubernetes::loss::loss;
use crate::backend::{AnnotationChange, Dirs, GuestDelivery};
use crate::config::{CONTAINER, GUEST_DIR};
use crate::error::CREATE_AGAIN;
use crate::{Error, ErrorKind, Result, SandboxId};

/// How long a mode is tried anew.
const TRIES: Duration = Duration::from_secs(10);
/// How long a guest may take to say its first byte.
const FIRST_BYTE: Duration = Duration::from_secs(10);
/// How long it may where the cluster starts a process for that: on a busy node that takes its time.
const FIRST_BYTE_OF_EXEC: Duration = Duration::from_secs(30);
/// How long it takes until a guest that did not answer is asked again: nobody says when it will.
const PAUSE: Duration = Duration::from_millis(100);
/// How long opening a stream may take.
const OPEN_LIMIT: Duration = Duration::from_secs(30);
/// The most that is noted of why a mode was not taken.
const MAX_REASON: usize = 1024;
/// The size of the buffer between the dialer and a handover stream.
const RELAY_BYTES: usize = 64 << 10;

/// A mode to a guest.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ConnectionMode {
    /// A process that the cluster starts in the Pod for us.
    Exec,
    /// The sandbox router, through the API server.
    Tunnel,
    /// The sandbox router, behind a Gateway.
    Gateway,
    /// The sandbox router, at a URL.
    Direct,
    /// The Pod's own address.
    InCluster,
}

impl ConnectionMode {
    /// In the order in which they are tried.
    pub(crate) const ALL: [Self; 5] =
        [Self::Exec, Self::Tunnel, Self::Gateway, Self::Direct, Self::InCluster];

    /// As `connection_mode` names it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Tunnel => "tunnel",
            Self::Gateway => "gateway",
            Self::Direct => "direct",
            Self::InCluster => "in-cluster",
        }
    }
}

/// Where a guest is.
#[derive(Clone, Debug)]
pub(super) struct GuestLocation {
    pub(super) id: SandboxId,
    pub(super) pod: PodRef,
    pub(super) pod_uid: String,
    pub(super) pod_ip: Option<String>,
    /// Where its container sees volumes that outlive the Pod.
    pub(super) durable_dirs: Vec<String>,
    pub(super) container: String,
    /// The template has put the guest there.
    pub(super) has_guest: bool,
    /// The Pod's specification says where its container starts.
    pub(super) names_working_dir: bool,
}

impl GuestLocation {
    /// Where the guest of the sandbox `id` is, in this Pod.
    pub(super) fn new(namespace: &str, id: &SandboxId, pod: &Pod) -> Self {
        let container = sandbox_container(pod);
        Self {
            id: id.clone(),
            pod: PodRef::new(namespace, pod.name_any()),
            pod_uid: pod.uid().unwrap_or_default(),
            pod_ip: pod.status.as_ref().and_then(|status| status.pod_ip.clone()),
            durable_dirs: container.map(|container| durable_dirs(pod, container)).unwrap_or_default(),
            container: container.map(|container| container.name.clone()).unwrap_or_default(),
            has_guest: container.is_some_and(has_guest),
            names_working_dir: container.is_some_and(|container| container.working_dir.is_some()),
        }
    }
}

/// The container that the sandbox is in: the one with our guest, the one of that name, or the first.
pub(super) fn sandbox_container(pod: &Pod) -> Option<&Container> {
    let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let with_guest = containers.iter().find(|container| has_guest(container));
    let named = || containers.iter().find(|container| container.name == CONTAINER);
    with_guest.or_else(named).or(containers.first())
}

/// Where the container sees volumes that outlive the Pod.
fn durable_dirs(pod: &Pod, container: &Container) -> Vec<String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let durable: Vec<_> = volumes
        .filter(|volume| volume.persistent_volume_claim.is_some())
        .map(|volume| &volume.name)
        .collect();
    let mounts = container.volume_mounts.iter().flatten();
    mounts.filter(|mount| durable.contains(&&mount.name)).map(|mount| mount.mount_path.clone()).collect()
}

impl GuestLocation {
    /// Why the template's guest is not spoken to, where it has none.
    fn lacks_guest(&self) -> String {
        format!("template: no container of Pod '{}' has sandpod's guest at {GUEST_DIR}.", self.pod.name)
    }
}

/// Whether a template has put the guest into this container.
pub(crate) fn has_guest(container: &Container) -> bool {
    container.volume_mounts.iter().flatten().any(|mount| mount.mount_path.trim_end_matches('/') == GUEST_DIR)
}

/// A guest that has said its first byte, or a runtime that stands for one.
pub(super) struct ConnectedGuest {
    mode: ConnectionMode,
    /// How the guest came there, and why by no better mode.
    delivery: GuestDelivery,
    delivery_reason: Option<String>,
    found: Endpoint,
    /// What opens the guest over the network.
    pub(super) key: Option<Key>,
    failed: Vec<String>,
}

/// What a mode leads to.
enum Endpoint {
    /// The guest of the template, and the stream by which it was found.
    Guest(Box<dyn ByteStream>),
    /// The same, reached over the network by a process that lacks the secret: the stream is by exec.
    GuestWithoutSecret(Box<dyn ByteStream>),
    /// A guest that was pushed, and where commands run.
    Pushed(Box<dyn ByteStream>, Dirs),
    /// A stock runtime.
    Runtime(Dialect),
}

impl Endpoint {
    fn delivery(&self) -> GuestDelivery {
        match self {
            Self::Guest(_) | Self::GuestWithoutSecret(_) => GuestDelivery::Template,
            Self::Pushed(..) => GuestDelivery::Push,
            Self::Runtime(dialect) => stock::delivery(dialect),
        }
    }
}

/// Why a mode was not taken.
enum ConnectError {
    Dial(DialError),
    /// It leads to the guest, and no token opens that.
    NoToken(String),
}

impl From<DialError> for ConnectError {
    fn from(error: DialError) -> Self {
        Self::Dial(error)
    }
}

impl std::fmt::Display for ConnectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dial(error) => error.fmt(f),
            Self::NoToken(why) => write!(f, "no token opens the guest: {why}"),
        }
    }
}

impl ConnectedGuest {
    /// What kept us from the ways before it.
    pub(super) fn why(&self) -> String {
        self.failed.join(" ").chars().take(MAX_REASON).collect()
    }

    pub(super) fn is_by_exec(&self) -> bool {
        self.mode == ConnectionMode::Exec
    }

    /// Where commands run, if the template knows nothing of us.
    pub(super) fn dirs(&self) -> Option<Dirs> {
        match &self.found {
            Endpoint::Guest(_) | Endpoint::GuestWithoutSecret(_) => None,
            Endpoint::Pushed(_, dirs) => Some(dirs.clone()),
            Endpoint::Runtime(_) => Some(Dirs { working_dir: String::new(), home: None }),
        }
    }

    /// How that is noted on the claim.
    pub(super) fn notes(&self, location: &GuestLocation) -> Vec<AnnotationChange> {
        let text = |text: String| Some(text).filter(|text| !text.is_empty());
        vec![
            (POD_UID, Some(location.pod_uid.clone())),
            (CONNECTION, Some(self.mode.name().to_owned())),
            (CONNECTION_REASON, text(self.why())),
            (DELIVERY, Some(self.delivery.as_str().to_owned())),
            (REASON, self.delivery_reason.clone()),
            (DURABLE_DIRS, text(location.durable_dirs.join("\n"))),
        ]
    }
}

impl AgentSandbox {
    /// The guest, by the first mode that works.
    pub(super) async fn connect(&self, location: &GuestLocation) -> Result<ConnectedGuest> {
        let wanted = self.0.config.connection_mode.as_deref();
        let (mut failed, mut lacks_token) = (Vec::new(), false);
        // Exec needs no token, so it does not wait for the namespace's Secret. A local one is for those who come later.
        let mut secret = self.local_secret()?.ok_or_else(String::new);
        for mode in
            ConnectionMode::ALL.into_iter().filter(|mode| wanted.is_none_or(|wanted| wanted == mode.name()))
        {
            if mode != ConnectionMode::Exec && secret.as_ref().is_err_and(String::is_empty) {
                secret = self.find_secret().await?;
            }
            match self.try_mode(mode, location, &secret).await {
                Ok(found) => {
                    let delivery = found.delivery();
                    let delivery_reason =
                        (delivery != GuestDelivery::Template).then(|| location.lacks_guest());
                    let key = match &found {
                        Endpoint::GuestWithoutSecret(_) => Some(Key::new_own()?),
                        _ => secret.ok().map(Key::Secret),
                    };
                    return Ok(ConnectedGuest { mode, delivery, delivery_reason, found, key, failed });
                }
                Err(ConnectError::Dial(DialError::Gone(why))) => {
                    return Err(Error::new(ErrorKind::NotFound, format!("{why}."), CREATE_AGAIN));
                }
                Err(error) => {
                    lacks_token |= matches!(error, ConnectError::NoToken(_));
                    failed.push(format!("{}: {}.", mode.name(), error.to_string().trim_end_matches('.')));
                }
            }
        }
        let is_router = |mode: &ConnectionMode| {
            matches!(mode, ConnectionMode::Tunnel | ConnectionMode::Gateway | ConnectionMode::Direct)
        };
        let router =
            ConnectionMode::ALL.into_iter().find(|mode| wanted == Some(mode.name())).filter(is_router);
        let cause = match router {
            _ if lacks_token => Cause::Token,
            Some(mode) if !self.router_answers(mode, location).await => Cause::Router(mode),
            _ => Cause::Guest,
        };
        Err(unreached(location, &cause, &failed))
    }

    /// Whether this mode leads to the router, whatever is behind it.
    async fn router_answers(&self, mode: ConnectionMode, location: &GuestLocation) -> bool {
        self.in_time(mode, location, self.http_connection(mode, location, self.0.config.server_port))
            .await
            .is_ok()
    }

    /// What answers by this mode. A Pod may be ready before that is.
    async fn try_mode(
        &self,
        mode: ConnectionMode,
        location: &GuestLocation,
        secret: &Result<Vec<u8>, String>,
    ) -> Result<Endpoint, ConnectError> {
        let begun = Instant::now();
        // One try may take all the time by itself: what hangs once seldom does so twice.
        let mut limit = self.startup_limit().max(TRIES);
        loop {
            match self.probe(mode, location, secret).await {
                Err(ConnectError::Dial(DialError::Unreachable(_))) if begun.elapsed() + PAUSE < limit => {
                    sleep(PAUSE).await;
                }
                result => return result,
            }
            limit = TRIES;
        }
    }

    /// Our guest, or the stock runtime of a Pod that has none.
    async fn probe(
        &self,
        mode: ConnectionMode,
        location: &GuestLocation,
        secret: &Result<Vec<u8>, String>,
    ) -> Result<Endpoint, ConnectError> {
        self.check_mode_options(mode)?;
        let no_guest = match self.probe_guest(mode, location, secret).await {
            Ok(found) => return Ok(found),
            Err(error) if location.has_guest || mode == ConnectionMode::Exec => return Err(error),
            Err(error) => error,
        };
        let no_runtime = match self.probe_runtime(mode, location).await {
            Ok(dialect) => return Ok(Endpoint::Runtime(dialect)),
            Err(error) => error,
        };
        Err(ConnectError::Dial(match no_runtime {
            DialError::Unreachable(why) => DialError::Unreachable(format!("{no_guest}; {why}")),
            DialError::Denied(why) => DialError::Denied(format!("{no_guest}; {why}")),
            gone @ DialError::Gone(_) => gone,
        }))
    }

    /// Our guest, and how it will be opened.
    async fn probe_guest(
        &self,
        mode: ConnectionMode,
        location: &GuestLocation,
        secret: &Result<Vec<u8>, String>,
    ) -> Result<Endpoint, ConnectError> {
        match secret {
            _ if mode == ConnectionMode::Exec => {
                let stream = self.open_live(mode, location).await?;
                if location.has_guest {
                    return Ok(Endpoint::Guest(stream));
                }
                Ok(Endpoint::Pushed(stream, self.make_directories(location).await?))
            }
            Ok(_) => Ok(Endpoint::Guest(self.open_live(mode, location).await?)),
            // By exec a guest would have to be pushed first, which is not this mode.
            Err(why) if !location.has_guest => Err(ConnectError::NoToken(why.clone())),
            Err(why) => {
                drop(self.open_live(mode, location).await?);
                match self.open_live(ConnectionMode::Exec, location).await {
                    Ok(stream) => Ok(Endpoint::GuestWithoutSecret(stream)),
                    Err(DialError::Denied(exec)) => Err(ConnectError::NoToken(format!("{why}; {exec}"))),
                    Err(error) => Err(error.into()),
                }
            }
        }
    }

    /// A stream by which our guest has said its first byte.
    pub(super) async fn open_live(
        &self,
        mode: ConnectionMode,
        location: &GuestLocation,
    ) -> Result<Box<dyn ByteStream>, DialError> {
        if mode == ConnectionMode::Exec
            && let Some(stream) = self.0.preconnected.take(&location.pod_uid)
        {
            return Ok(stream);
        }
        let mut stream = self.open(mode, location).await?;
        let mut first = vec![0];
        let limit = if mode == ConnectionMode::Exec { FIRST_BYTE_OF_EXEC } else { FIRST_BYTE };
        match timeout(limit, stream.read_exact(&mut first)).await {
            Ok(Ok(_)) => Ok(unread(first, stream)),
            Ok(Err(error)) => Err(DialError::Unreachable(format!("the guest does not answer: {error}"))),
            Err(_) => Err(DialError::Unreachable("the guest does not answer".to_owned())),
        }
    }

    async fn open(
        &self,
        mode: ConnectionMode,
        location: &GuestLocation,
    ) -> Result<Box<dyn ByteStream>, DialError> {
        let opening = async {
            match mode {
                ConnectionMode::Exec => self.open_exec(location).await,
                mode => self.open_guest(mode, location).await,
            }
        };
        self.in_time(mode, location, opening).await
    }

    /// What is opened by a mode, unless that takes too long.
    pub(super) async fn in_time<T>(
        &self,
        mode: ConnectionMode,
        location: &GuestLocation,
        opening: impl Future<Output = Result<T, DialError>>,
    ) -> Result<T, DialError> {
        let limit = match mode {
            // A Gateway may be waited for, and a guest that is pushed takes its time.
            ConnectionMode::Gateway => self.startup_limit(),
            ConnectionMode::Exec if !location.has_guest => self.startup_limit(),
            _ => OPEN_LIMIT,
        };
        let slow = || DialError::Unreachable(format!("it takes longer than {}s", limit.as_secs()));
        timeout(limit, opening).await.unwrap_or_else(|_| Err(slow()))
    }

    /// Whether the Pod is the one that it was.
    pub(super) async fn still_there(&self, location: &GuestLocation) -> Result<(), DialError> {
        let (pod, id) = (&location.pod, &location.id);
        let seen = within(self.0.pods.get_opt(&pod.name)).await;
        let seen = seen.map_err(|cause| {
            DialError::Unreachable(refused(&format!("read Pod '{}'", pod.name), &cause).to_string())
        })?;
        let Some(reason) = loss(seen.as_ref(), &pod.namespace, &pod.name, &location.pod_uid) else {
            return Ok(());
        };
        let claim = self.0.claims.find_any(id).await.ok().flatten();
        if claim.is_some_and(|claim| readiness::claim_state(&claim) == ClaimState::Suspended) {
            return Err(DialError::Gone(suspended(id).to_string().trim_end_matches('.').to_owned()));
        }
        Err(DialError::Gone(format!("{reason} Sandbox '{id}' may have been deleted")))
    }

    async fn open_exec(&self, location: &GuestLocation) -> Result<Box<dyn ByteStream>, DialError> {
        let dir = if location.has_guest { GUEST_DIR } else { self.push_guest(location).await? };
        let pipe = [format!("{dir}/{BOOT}"), "pipe".to_owned()];
        match exec::stream(&self.0.client, &location.pod, &location.container, pipe).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(not_opened(location, error)),
        }
    }
}

/// The stream as it was before `said` was read from it.
pub(super) fn unread(said: Vec<u8>, stream: Box<dyn ByteStream>) -> Box<dyn ByteStream> {
    let (reader, writer) = split(stream);
    Box::new(join(Cursor::new(said).chain(reader), writer))
}

/// Why there is no exec in a Pod.
pub(super) fn not_opened(location: &GuestLocation, error: sandpod_kube::Error) -> DialError {
    let sandpod_kube::Error::Open { cause, .. } = error else {
        return DialError::Unreachable(error.to_string());
    };
    let error = refused(&format!("exec in Pod '{}'", location.pod.name), &cause);
    match error.kind() {
        ErrorKind::Denied => DialError::Denied(error.to_string()),
        // The next dial finds out whether the Pod is gone or only its container.
        _ => DialError::Unreachable(error.message().to_owned()),
    }
}

/// What keeps us from the guest.
enum Cause {
    /// The router that was asked for does not answer.
    Router(ConnectionMode),
    /// Nothing opens the guest.
    Token,
    /// The guest, or what stands for one.
    Guest,
}

/// Why no mode led there, and what to do.
fn unreached(location: &GuestLocation, cause: &Cause, failed: &[String]) -> Error {
    let message = match cause {
        Cause::Router(mode) => {
            format!("Cannot reach the sandbox-router (connection_mode='{}').", mode.name())
        }
        Cause::Token | Cause::Guest => {
            format!(
                "Sandbox '{}' runs in Pod '{}', but its guest can't be reached.",
                location.id, location.pod.name
            )
        }
    };
    // What was refused on the mode to the router has said already what grants it.
    let is_said = failed.iter().any(|why| why.contains("deploy/rbac/"));
    let next = match cause {
        Cause::Router(_) if is_said => "Then try again.",
        Cause::Router(ConnectionMode::Gateway) => {
            "Ensure the Gateway has an address and leads to the sandbox-router."
        }
        Cause::Router(ConnectionMode::Direct) => "Ensure api_url leads to the sandbox-router.",
        Cause::Router(_) => "Ensure the sandbox-router Service exists.",
        Cause::Token => {
            "Set guest_token_file, make the Secret as deploy/agent-sandbox/template-init-container.yaml says, or allow \
             pods/exec (deploy/rbac/agent-sandbox.yaml)."
        }
        Cause::Guest if location.has_guest => {
            "Allow one of the ways: pods/exec, or a template whose guest listens (serve --websocket) and whose NetworkPolicy \
             admits the router, as in deploy/agent-sandbox/template-init-container.yaml."
        }
        Cause::Guest => {
            "Put the guest into the template (deploy/agent-sandbox has examples), and allow one of the ways."
        }
    };
    Error::new(ErrorKind::Unavailable, format!("{message} {}", failed.join(" ")), next)
}

/// Streams by exec that end once Bind has taken our token to the guest.
#[derive(Default)]
struct TokenHandover(Mutex<State>);

/// How far an handover is.
enum State {
    /// The streams that were opened for it.
    Open(Vec<AbortHandle>),
    Over,
}

impl Default for State {
    fn default() -> Self {
        Self::Open(Vec::new())
    }
}

impl TokenHandover {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        matches!(*self.state(), State::Over)
    }

    /// The same stream, until the handover is over.
    fn relay(&self, mut stream: Box<dyn ByteStream>) -> Box<dyn ByteStream> {
        let (near, mut far) = duplex(RELAY_BYTES);
        let relaying = tokio::spawn(async move {
            // Both ends see its end, however it comes.
            let _ = copy_bidirectional(&mut far, &mut stream).await;
        });
        match &mut *self.state() {
            State::Open(relays) => relays.push(relaying.abort_handle()),
            State::Over => relaying.abort(),
        }
        Box::new(near)
    }

    /// Ends its streams: the next ones take the mode that was found.
    fn end(&self) {
        if let State::Open(relays) = std::mem::replace(&mut *self.state(), State::Over) {
            relays.iter().for_each(AbortHandle::abort);
        }
    }
}

/// Opens streams to the guest in the Pod with this UID, and in no other of its name, by the mode that was found.
pub(super) struct PlaceDialer {
    backend: AgentSandbox,
    location: GuestLocation,
    mode: ConnectionMode,
    /// The stream by which our guest was found.
    first: Mutex<Option<Box<dyn ByteStream>>>,
    /// The runtime that stands for it.
    runtime: Option<Dialect>,
    tokens: Option<Tokens>,
    handover: Option<TokenHandover>,
}

impl PlaceDialer {
    pub(super) fn new(
        backend: AgentSandbox,
        location: GuestLocation,
        reached: ConnectedGuest,
        tokens: Option<Tokens>,
    ) -> Self {
        let handover = matches!(reached.found, Endpoint::GuestWithoutSecret(_)).then(TokenHandover::default);
        let (first, runtime) = match reached.found {
            Endpoint::Guest(stream) | Endpoint::GuestWithoutSecret(stream) | Endpoint::Pushed(stream, _) => {
                (Some(stream), None)
            }
            Endpoint::Runtime(dialect) => (None, Some(dialect)),
        };
        let tokens = tokens.filter(|_| reached.mode != ConnectionMode::Exec && runtime.is_none());
        Self { backend, location, mode: reached.mode, first: Mutex::new(first), runtime, tokens, handover }
    }

    async fn open(&self) -> Result<Box<dyn ByteStream>, DialError> {
        let handover = self.handover.as_ref().filter(|handover| !handover.is_over());
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let stream = match first {
            Some(first) => first,
            None => self.open_anew(handover.is_some()).await?,
        };
        Ok(match handover {
            Some(handover) => handover.relay(stream),
            None => stream,
        })
    }

    async fn open_anew(&self, is_handover: bool) -> Result<Box<dyn ByteStream>, DialError> {
        self.backend.still_there(&self.location).await?;
        match &self.runtime {
            Some(dialect) => Ok(dialect.stream()),
            None if is_handover => self.backend.open(ConnectionMode::Exec, &self.location).await,
            None => self.backend.open(self.mode, &self.location).await,
        }
    }
}

impl Dialer for PlaceDialer {
    fn dial(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, DialError>> {
        self.open().boxed()
    }

    fn tokens(&self) -> Vec<Token> {
        self.tokens.as_ref().map(Tokens::next).unwrap_or_default()
    }

    fn bound(&self) {
        if let Some(tokens) = &self.tokens {
            tokens.note_bound();
        }
        if let Some(handover) = &self.handover {
            handover.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_on_the_way_to_the_router_is_not_taken_for_a_missing_router() {
        let location = GuestLocation::new("agents", &"a".parse().unwrap(), &Pod::default());
        let next = |failed: &str| {
            let error =
                unreached(&location, &Cause::Router(ConnectionMode::Tunnel), &[format!("tunnel: {failed}.")]);
            error.next_step().to_owned()
        };
        assert_eq!(next("no Pod is ready"), "Ensure the sandbox-router Service exists.");
        assert_eq!(next("It is forbidden. Apply deploy/rbac/agent-sandbox-router.yaml"), "Then try again.");
    }
}
