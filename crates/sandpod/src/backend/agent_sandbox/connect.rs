//! Connects to the guest in a Pod: tries the connection modes in order and takes the first that works.
//!
//! A mode works if our guest has sent its first byte by it, or a stock runtime has answered ([`stock`]). The mode is recorded
//! on the claim, with the reasons against those before it.

use std::io::Cursor;
use std::time::Duration;

use sandpod_client::{ByteStream, DialError};
use sandpod_dialect::Dialect;
use sandpod_kube::exec::{self, PodRef};
use sandpod_kube::k8s_openapi::api::core::v1::{Container, Pod};
use sandpod_kube::kube::ResourceExt;
use tokio::io::{AsyncReadExt as _, join, split};
use tokio::time::{Instant, sleep, timeout};

use super::claims::{CONNECTION, CONNECTION_REASON, DURABLE_DIRS};
use super::readiness::{self, ClaimState};
use super::router::RouteError;
use super::suspend::suspended;
use super::tokens::Key;
use super::volumes::{durable_dirs, sandbox_container};
use super::{AgentSandbox, refused, stock};
use crate::backend::kubernetes::anchor::POD_UID;
use crate::backend::kubernetes::api::within;
use crate::backend::kubernetes::delivery::{DELIVERY, REASON};
use crate::backend::kubernetes::guest::BOOT;
use crate::backend::kubernetes::loss::loss;
use crate::backend::{AnnotationChange, Dirs, GuestDelivery};
use crate::config::GUEST_DIR;
use crate::error::CREATE_AGAIN;
use crate::{Error, ErrorKind, Result, SandboxId};

/// How long a mode is retried.
const TRIES: Duration = Duration::from_secs(10);
/// How long a guest may take to send its first byte.
const FIRST_BYTE: Duration = Duration::from_secs(10);
/// The same through exec, where the cluster starts a process first, which takes long on a busy node.
const FIRST_BYTE_OF_EXEC: Duration = Duration::from_secs(30);
/// The pause before a guest that did not answer is tried again.
const PAUSE: Duration = Duration::from_millis(100);
/// How long opening a stream may take.
const OPEN_LIMIT: Duration = Duration::from_secs(30);
/// The longest recorded reason against earlier modes.
const MAX_REASON: usize = 1024;

/// How a guest is reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ConnectionMode {
    /// An exec stream: a process that the cluster starts in the Pod.
    Exec,
    /// The sandbox router, by a port-forward through the API server.
    Tunnel,
    /// The sandbox router, behind a Gateway.
    Gateway,
    /// The sandbox router, at a URL.
    Direct,
    /// The Pod's own address.
    InCluster,
}

impl ConnectionMode {
    /// All modes, in the order in which they are tried.
    pub(crate) const ALL: [Self; 5] =
        [Self::Exec, Self::Tunnel, Self::Gateway, Self::Direct, Self::InCluster];

    /// Returns the value of the option `connection_mode`.
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
    /// The mount paths of durable volumes.
    pub(super) durable_dirs: Vec<String>,
    pub(super) container: String,
    /// The template delivers our guest.
    pub(super) has_guest: bool,
    /// The Pod's specification sets a working directory.
    pub(super) names_working_dir: bool,
}

impl GuestLocation {
    /// Returns the location of the guest of the sandbox `id` in this Pod.
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

impl GuestLocation {
    /// The reason why the guest was not delivered by the template.
    fn lacks_guest(&self) -> String {
        format!("template: no container of Pod '{}' has sandpod's guest at {GUEST_DIR}.", self.pod.name)
    }
}

/// Whether a template delivers our guest to this container.
pub(crate) fn has_guest(container: &Container) -> bool {
    container.volume_mounts.iter().flatten().any(|mount| mount.mount_path.trim_end_matches('/') == GUEST_DIR)
}

/// A guest that has sent its first byte, or a stock runtime that has answered.
pub(super) struct ConnectedGuest {
    pub(super) mode: ConnectionMode,
    /// How the guest was delivered, and why no better delivery was possible.
    delivery: GuestDelivery,
    delivery_reason: Option<String>,
    pub(super) found: Endpoint,
    /// Opens the guest over the network.
    pub(super) key: Option<Key>,
    failed: Vec<String>,
}

/// The other end of a mode that works.
pub(super) enum Endpoint {
    /// The template's guest, and the stream by which it was found.
    Guest(Box<dyn ByteStream>),
    /// The same, found over the network by a process without the secret. The stream is an exec stream.
    GuestWithoutSecret(Box<dyn ByteStream>),
    /// A guest that was pushed, and the directories of commands.
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

/// Why a mode does not work.
enum ConnectError {
    Dial(DialError),
    /// The guest is there, and this process has no token that opens it.
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
    /// Returns the reasons against the modes before it.
    pub(super) fn why(&self) -> String {
        self.failed.join(" ").chars().take(MAX_REASON).collect()
    }

    pub(super) fn is_by_exec(&self) -> bool {
        self.mode == ConnectionMode::Exec
    }

    /// Returns the directories of commands, if the template was not made for our guest.
    pub(super) fn dirs(&self) -> Option<Dirs> {
        match &self.found {
            Endpoint::Guest(_) | Endpoint::GuestWithoutSecret(_) => None,
            Endpoint::Pushed(_, dirs) => Some(dirs.clone()),
            Endpoint::Runtime(_) => Some(Dirs { working_dir: String::new(), home: None }),
        }
    }

    /// Returns the annotations that record it.
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
    /// Connects by the first mode that works.
    pub(super) async fn connect(&self, location: &GuestLocation) -> Result<ConnectedGuest> {
        let wanted = self.0.config.connection_mode.as_deref();
        let (mut failed, mut lacks_token) = (Vec::new(), false);
        // Exec needs no token, so it does not wait for the namespace's Secret. A local secret is set for later processes.
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
        let refused = match router {
            Some(mode) if !lacks_token => self.router_error(mode, location).await.map(|error| (mode, error)),
            _ => None,
        };
        let cause = match refused {
            _ if lacks_token => Cause::Token,
            Some((mode, error)) => Cause::Router { mode, names_role: error.names_role },
            None => Cause::Guest,
        };
        Err(unreached(location, &cause, &failed))
    }

    /// Returns why this mode does not lead to the router, or none if it does.
    async fn router_error(&self, mode: ConnectionMode, location: &GuestLocation) -> Option<RouteError> {
        let opening = self.http_connection(mode, location, self.0.config.server_port);
        self.in_time(mode, location, opening).await.err()
    }

    /// Probes this mode repeatedly: a Pod may be ready before its guest is.
    async fn try_mode(
        &self,
        mode: ConnectionMode,
        location: &GuestLocation,
        secret: &Result<Vec<u8>, String>,
    ) -> Result<Endpoint, ConnectError> {
        let begun = Instant::now();
        // One try may take all the time: a second one seldom hangs too.
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

    /// Probes for our guest, and in a Pod without one for a stock runtime.
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

    /// Probes for our guest, and finds out how streams to it will be opened.
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
            // Pushing a guest is for exec.
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

    /// Opens a stream on which our guest has sent its first byte.
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

    pub(super) async fn open(
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

    /// Limits the time of `opening` by the mode's time limit.
    pub(super) async fn in_time<T, E: From<DialError>>(
        &self,
        mode: ConnectionMode,
        location: &GuestLocation,
        opening: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let limit = match mode {
            // A Gateway may not be ready yet, and pushing a guest takes long.
            ConnectionMode::Gateway => self.startup_limit(),
            ConnectionMode::Exec if !location.has_guest => self.startup_limit(),
            _ => OPEN_LIMIT,
        };
        let slow = || DialError::Unreachable(format!("it takes longer than {}s", limit.as_secs()));
        timeout(limit, opening).await.unwrap_or_else(|_| Err(slow().into()))
    }

    /// Checks that the Pod is still the same.
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

/// Returns the stream as it was before `said` was read from it.
pub(super) fn unread(said: Vec<u8>, stream: Box<dyn ByteStream>) -> Box<dyn ByteStream> {
    let (reader, writer) = split(stream);
    Box::new(join(Cursor::new(said).chain(reader), writer))
}

/// Converts the error of a failed exec.
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

/// Why the guest can't be reached.
enum Cause {
    /// The router that the options name does not answer. `names_role`: a right is missing, and the reason names the role.
    Router { mode: ConnectionMode, names_role: bool },
    /// This process has no token that opens the guest.
    Token,
    /// Neither a guest nor a stock runtime answers.
    Guest,
}

/// The error if no mode works, with the next step.
fn unreached(location: &GuestLocation, cause: &Cause, failed: &[String]) -> Error {
    let message = match cause {
        Cause::Router { mode, .. } => {
            format!("Cannot reach the sandbox-router (connection_mode='{}').", mode.name())
        }
        Cause::Token | Cause::Guest => {
            format!(
                "Sandbox '{}' runs in Pod '{}', but its guest can't be reached.",
                location.id, location.pod.name
            )
        }
    };
    let next = match cause {
        Cause::Router { names_role: true, .. } => "Then try again.",
        Cause::Router { mode: ConnectionMode::Gateway, .. } => {
            "Ensure the Gateway has an address and leads to the sandbox-router."
        }
        Cause::Router { mode: ConnectionMode::Direct, .. } => "Ensure api_url leads to the sandbox-router.",
        Cause::Router { .. } => "Ensure the sandbox-router Service exists.",
        Cause::Token => {
            "Set guest_token_file, make the Secret as deploy/agent-sandbox/template-init-container.yaml says, or allow \
             pods/exec (deploy/rbac/agent-sandbox.yaml)."
        }
        Cause::Guest if location.has_guest => {
            "Allow one connection mode: pods/exec, or a template whose guest listens (serve --websocket) and whose NetworkPolicy \
             admits the router, as in deploy/agent-sandbox/template-init-container.yaml."
        }
        Cause::Guest => {
            "Put the guest into the template (deploy/agent-sandbox has examples), and allow one connection mode."
        }
    };
    Error::new(ErrorKind::Unavailable, format!("{message} {}", failed.join(" ")), next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_the_route_to_the_router_is_not_a_missing_router() {
        let location = GuestLocation::new("agents", &"a".parse().unwrap(), &Pod::default());
        let next = |names_role: bool| {
            let cause = Cause::Router { mode: ConnectionMode::Tunnel, names_role };
            unreached(&location, &cause, &["tunnel: no.".to_owned()]).next_step().to_owned()
        };
        assert_eq!(next(false), "Ensure the sandbox-router Service exists.");
        assert_eq!(next(true), "Then try again.");
    }
}
