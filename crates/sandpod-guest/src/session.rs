//! Sessions of clients, the binding to a claim, and the records of calls.

mod acknowledged;
pub(crate) mod binding;
mod bound_files;
pub(crate) mod records;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use sandpod_protocol::v1::session_server::Session;
use sandpod_protocol::v1::{
    BindRequest, BindResponse, EndIfIdleRequest, EndIfIdleResponse, Enforced, ErrorCode, ExtendRequest,
    ExtendResponse, HelloRequest, HelloResponse, StatsRequest, StatsResponse,
};
use sandpod_protocol::{BOUNDS_CAPABILITY, Failure, VERSIONS};
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::network::auth::StreamAuth;
use binding::Binding;
use records::Records;

use crate::activity::Activity;
use crate::files::{PathResolver, blocking};
use crate::policy::Probe;
use crate::transport::OverNetwork;
use crate::watchdog::Watchdog;

/// Maximum length of the name of a session or claim.
const MAX_NAME_BYTES: usize = 256;

/// Implements the protocol's `Session` service.
pub(crate) struct SessionService {
    pub(crate) boot_id: String,
    pub(crate) started: Instant,
    pub(crate) records: Records,
    pub(crate) binding: Arc<Binding>,
    pub(crate) activity: Activity,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) kernel: Probe,
    pub(crate) resolver: PathResolver,
    /// Exit code of the user's own command, once it has ended.
    pub(crate) command_exit: Arc<OnceLock<i32>>,
}

impl SessionService {
    fn enforced(&self) -> Enforced {
        Enforced {
            memory: self.watchdog.guards_memory(),
            kernel_paths: self.resolver.uses_openat2(),
            ..self.kernel.result().enforced()
        }
    }
}

#[tonic::async_trait]
impl Session for SessionService {
    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloResponse>, Status> {
        let auth = request.extensions().get::<Arc<StreamAuth>>().cloned();
        let request = request.into_inner();
        if let Some(auth) = auth {
            auth.authenticate(&request.token).await?;
        }
        let version = common_version(request.min_version, request.max_version)?;
        check_name("session", &request.session)?;
        Ok(Response::new(HelloResponse {
            version,
            boot_id: self.boot_id.clone(),
            session_known: self.records.open_session(&request.session),
            capabilities: vec![BOUNDS_CAPABILITY.to_owned()],
            guest_version: env!("CARGO_PKG_VERSION").to_owned(),
            claim: self.binding.claim().unwrap_or_default(),
            enforced: Some(self.enforced()),
        }))
    }

    async fn bind(&self, request: Request<BindRequest>) -> Result<Response<BindResponse>, Status> {
        let is_admitted = request.extensions().get::<OverNetwork>().is_none();
        let request = request.into_inner();
        check_name("claim", &request.claim)?;
        let (binding, kernel) = (self.binding.clone(), self.kernel.result());
        let resolver = self.resolver.clone();
        let recover = move |rules| resolver.with_rules(rules).recover();
        let outcome = blocking(move || binding.bind(request, kernel, is_admitted, recover)).await?;
        Ok(Response::new(BindResponse {
            enforced: Some(self.enforced()),
            other_policy: outcome.other_policy,
            policy_sha256: Bytes::copy_from_slice(&outcome.policy_sha256),
            client_rules: outcome.client_rules,
        }))
    }

    async fn stats(&self, _: Request<StatsRequest>) -> Result<Response<StatsResponse>, Status> {
        let watchdog = self.watchdog.clone();
        let now = blocking(move || Ok(watchdog.readings())).await?;
        Ok(Response::new(StatsResponse {
            uptime_ms: milliseconds(self.started.elapsed()),
            memory_bytes: now.memory_bytes,
            memory_limit_bytes: now.memory_limit_bytes,
            tasks: now.tasks,
            task_limit: now.task_limit,
            commands: now.commands,
            enforced: Some(self.enforced()),
            command_exit: self.command_exit.get().copied(),
            ttl_left_ms: self.binding.time_left(&self.activity).map(milliseconds),
        }))
    }

    async fn extend(&self, request: Request<ExtendRequest>) -> Result<Response<ExtendResponse>, Status> {
        let ExtendRequest { claim, ttl_seconds } = request.into_inner();
        self.binding.extend(&claim, ttl_seconds)?;
        Ok(Response::new(ExtendResponse {}))
    }

    async fn end_if_idle(
        &self,
        request: Request<EndIfIdleRequest>,
    ) -> Result<Response<EndIfIdleResponse>, Status> {
        let EndIfIdleRequest { claim, idle_ms } = request.into_inner();
        self.binding.check_claim(&claim)?;
        let ends = self.activity.end_if_idle(Duration::from_millis(idle_ms));
        Ok(Response::new(EndIfIdleResponse { ends }))
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the newest version that both sides support.
fn common_version(min: u32, max: u32) -> Result<u32, Failure> {
    let (oldest, newest) = (*VERSIONS.start(), *VERSIONS.end());
    let common = max.min(newest);
    if min <= max && common >= min.max(oldest) {
        return Ok(common);
    }
    Err(Failure::new(
        ErrorCode::Unsupported,
        format!(
            "the client speaks protocol versions {min} to {max} and this guest {oldest} to {newest}: \
             use releases of sandpod that are closer together"
        ),
    ))
}

fn check_name(what: &str, name: &str) -> Result<(), Failure> {
    if (1..=MAX_NAME_BYTES).contains(&name.len()) {
        return Ok(());
    }
    let message = format!("the name of a {what} has 1 to {MAX_NAME_BYTES} bytes, not {}", name.len());
    Err(Failure::new(ErrorCode::InvalidArgument, message))
}
