//! The identity of a runtime, and the binding of its sandbox, which a file in the sandbox stores for all processes.

use std::collections::BTreeMap;
use std::sync::Arc;

use sandpod_protocol::v1::session_server;
use sandpod_protocol::v1::{
    BindRequest, BindResponse, EndIfIdleRequest, EndIfIdleResponse, Enforced, ErrorCode, ExtendRequest,
    ExtendResponse, HelloRequest, HelloResponse, StatsRequest, StatsResponse,
};
use sandpod_protocol::{BOUNDS_CAPABILITY, Failure, VERSIONS};
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;
use tonic::{Request, Response, Status};

use crate::files::absolute;
use crate::incoming::write;
use crate::policy::{BoundPolicy, Rules};
use crate::script_job::{FOLDER, ScriptJobs, script};

/// The service.
pub(crate) struct Session {
    jobs: Arc<ScriptJobs>,
    binding: Arc<Binding>,
}

/// The binding of a sandbox.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Bound {
    claim: String,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) working_dir: String,
    #[serde(default)]
    pub(crate) policy: Option<BoundPolicy>,
}

/// The binding as far as it is known.
pub(crate) struct Binding {
    jobs: Arc<ScriptJobs>,
    bound: OnceCell<Bound>,
}

impl Binding {
    pub(crate) fn new(jobs: Arc<ScriptJobs>) -> Self {
        Self { jobs, bound: OnceCell::new() }
    }

    /// Reads the binding, if there is one.
    async fn read(&self) -> Result<Option<Bound>, Failure> {
        let fetch = || async {
            match self.jobs.file(&file()).await {
                Ok(Some(kept)) => parse(&kept).map_err(Some),
                Ok(None) => Err(None),
                Err(failure) => Err(Some(failure)),
            }
        };
        match self.bound.get_or_try_init(fetch).await {
            Ok(bound) => Ok(Some(bound.clone())),
            Err(None) => Ok(None),
            Err(Some(failure)) => Err(failure),
        }
    }

    /// Returns the binding for a call.
    pub(crate) async fn bound(&self) -> Result<Bound, Failure> {
        Ok(self.read().await?.unwrap_or_default())
    }

    /// Binds the sandbox unless it is bound; returns the binding that holds.
    async fn bind(&self, wanted: Bound) -> Result<Bound, Failure> {
        if let Some(bound) = self.read().await? {
            return Ok(bound);
        }
        let job = self.jobs.job();
        let kept = serde_json::to_vec(&wanted)
            .map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))?;
        job.put_file("body", kept.into()).await?;
        job.put_words(&[]).await?;
        let kept = job.run(script!("bind"), &[&file()]).await?;
        let bound = parse(&kept)?;
        Ok(self.bound.get_or_init(|| async { bound }).await.clone())
    }
}

/// Path of the file.
fn file() -> String {
    format!("{FOLDER}/bound.json")
}

fn parse(kept: &[u8]) -> Result<Bound, Failure> {
    serde_json::from_slice(kept).map_err(|error| {
        let message =
            format!("the file with the sandbox's binding is invalid ({error}): create a new sandbox");
        Failure::new(ErrorCode::Internal, message)
    })
}

impl Session {
    pub(crate) fn new(jobs: Arc<ScriptJobs>, binding: Arc<Binding>) -> Self {
        Self { jobs, binding }
    }

    /// Returns a directory for commands: `wanted` if it exists or can be created, or else the runtime's working directory.
    async fn directory(&self, wanted: &str) -> Result<String, Failure> {
        let found = self.jobs.job().run_with_words(script!("home"), &[wanted.as_bytes()]).await?;
        Ok(String::from_utf8_lossy(&found).trim_end_matches('\n').to_owned())
    }

    async fn set_up(&self, request: BindRequest) -> Result<BindResponse, Failure> {
        if !request.working_dir.is_empty() {
            absolute(&request.working_dir)?;
        }
        let (mut working_dir, mut env) = (request.working_dir, BTreeMap::from_iter(request.env));
        let mut policy = None;
        if self.binding.read().await?.is_none() {
            working_dir = self.directory(&working_dir).await?;
            if let Some(home) = env.get_mut("HOME") {
                *home = self.directory(home).await?;
            }
            for file in &request.files {
                let mode = if file.mode == 0 { 0o644 } else { file.mode };
                write(&self.jobs, Rules::default(), &file.path, &file.content, Some(mode)).await?;
            }
            if let Some(asked) = &request.policy {
                policy = Some(BoundPolicy::new(&self.jobs, asked).await?);
            }
        }
        let wanted = Bound { claim: request.claim.clone(), env, working_dir, policy };
        let bound = self.binding.bind(wanted).await?;
        if bound.claim != request.claim {
            let message = "the sandbox is bound to another claim";
            return Err(Failure::new(ErrorCode::NotYours, message));
        }
        let other_policy = match (&bound.policy, &request.policy) {
            (Some(bound), Some(asked)) => bound.is_other(asked),
            (bound, asked) => bound.is_some() || asked.is_some(),
        };
        let client_rules = bound.policy.as_ref().map(BoundPolicy::client_rules).unwrap_or_default();
        let enforced = Some(Enforced::default());
        Ok(BindResponse { enforced, other_policy, client_rules, ..BindResponse::default() })
    }
}

/// Returns the error for a capability that stock runtimes lack.
pub(crate) fn lacks(jobs: &ScriptJobs, capability: &str) -> Failure {
    let kind = jobs.kind().as_str();
    let message = format!(
        "{capability}: the stock runtime '{kind}' does not support this; put sandpod's guest into the template, or allow pods/exec"
    );
    Failure::new(ErrorCode::Unsupported, message)
}

#[tonic::async_trait]
impl session_server::Session for Session {
    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloResponse>, Status> {
        let request = request.into_inner();
        let (oldest, newest) = VERSIONS.into_inner();
        if request.max_version < oldest || request.min_version > newest {
            let message = format!("the supported versions are {oldest} to {newest}");
            return Err(Failure::new(ErrorCode::Unsupported, message).into());
        }
        let bound = self.binding.read().await?;
        Ok(Response::new(HelloResponse {
            version: newest.min(request.max_version),
            boot_id: self.jobs.name().to_owned(),
            // Records of commands are in the sandbox, and other calls are not repeated.
            session_known: true,
            capabilities: vec![BOUNDS_CAPABILITY.to_owned()],
            guest_version: format!("stock runtime {}", self.jobs.kind().as_str()),
            claim: bound.map(|bound| bound.claim).unwrap_or_default(),
            enforced: Some(Enforced::default()),
        }))
    }

    async fn bind(&self, request: Request<BindRequest>) -> Result<Response<BindResponse>, Status> {
        Ok(self.set_up(request.into_inner()).await.map(Response::new)?)
    }

    async fn stats(&self, _: Request<StatsRequest>) -> Result<Response<StatsResponse>, Status> {
        Err(lacks(&self.jobs, "stats").into())
    }

    /// A runtime does not end by itself. Its time to live is that of its `SandboxClaim`, which was changed before this
    /// call.
    async fn extend(&self, request: Request<ExtendRequest>) -> Result<Response<ExtendResponse>, Status> {
        let bound = self.binding.bound().await?;
        if bound.claim != request.into_inner().claim {
            return Err(Failure::new(ErrorCode::NotYours, "the sandbox is bound to another claim").into());
        }
        Ok(Response::new(ExtendResponse {}))
    }

    /// A runtime does not record when it was used last.
    async fn end_if_idle(&self, _: Request<EndIfIdleRequest>) -> Result<Response<EndIfIdleResponse>, Status> {
        Err(lacks(&self.jobs, "end_if_idle").into())
    }
}
