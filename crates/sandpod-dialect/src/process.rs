//! Commands. A runtime runs them to their end; started commands are refused by name.

use std::sync::Arc;

use sandpod_protocol::Failure;
use sandpod_protocol::v1::process_server;
use sandpod_protocol::v1::{
    AttachRequest, CancelRequest, CancelResponse, ErrorCode, ExecuteRequest, ExecuteResponse, InputRequest,
    InputResponse, ListProcessesRequest, ListProcessesResponse, ProcessEvent, ResizeRequest, ResizeResponse,
    SignalRequest, SignalResponse, StartRequest, StartResponse, WaitRequest, WaitResponse,
};
use tonic::{Request, Response, Status};

use crate::command::{Job, cancel};
use crate::script_job::ScriptJobs;
use crate::session::{Binding, lacks};

/// The service.
pub(crate) struct Process {
    jobs: Arc<ScriptJobs>,
    binding: Arc<Binding>,
}

impl Process {
    pub(crate) fn new(jobs: Arc<ScriptJobs>, binding: Arc<Binding>) -> Self {
        Self { jobs, binding }
    }

    async fn run(&self, request: ExecuteRequest) -> Result<ExecuteResponse, Failure> {
        let missing = |what| move || Failure::new(ErrorCode::InvalidArgument, format!("{what} is missing"));
        let operation = request.operation.ok_or_else(missing("the operation"))?;
        let command = request.command.ok_or_else(missing("the command"))?;
        let name = name(&operation.session, operation.number)?;
        let bound = self.binding.bound().await?;
        Job::new(&self.jobs, command, bound)?.run(&self.jobs, &name).await
    }

    fn lacks<T>(&self, capability: &str) -> Result<Response<T>, Status> {
        Err(lacks(&self.jobs, capability).into())
    }
}

/// Returns the name of a command's job. It contains the client's session, so that a repeated request finds the job.
fn name(session: &str, number: u64) -> Result<String, Failure> {
    let is_plain = |one: char| one.is_ascii_alphanumeric() || one == '-';
    if session.is_empty() || session.len() > 64 || !session.chars().all(is_plain) {
        return Err(Failure::new(ErrorCode::InvalidArgument, "the name of the session is invalid"));
    }
    Ok(format!("{session}-{number}"))
}

#[tonic::async_trait]
impl process_server::Process for Process {
    async fn execute(&self, request: Request<ExecuteRequest>) -> Result<Response<ExecuteResponse>, Status> {
        Ok(self.run(request.into_inner()).await.map(Response::new)?)
    }

    async fn cancel(&self, request: Request<CancelRequest>) -> Result<Response<CancelResponse>, Status> {
        let CancelRequest { session, number } = request.into_inner();
        cancel(&self.jobs, &name(&session, number)?).await?;
        Ok(Response::new(CancelResponse {}))
    }

    async fn start(&self, _: Request<StartRequest>) -> Result<Response<StartResponse>, Status> {
        self.lacks("spawn")
    }

    async fn list(
        &self,
        _: Request<ListProcessesRequest>,
    ) -> Result<Response<ListProcessesResponse>, Status> {
        self.lacks("processes")
    }

    async fn input(&self, _: Request<InputRequest>) -> Result<Response<InputResponse>, Status> {
        self.lacks("input")
    }

    async fn resize(&self, _: Request<ResizeRequest>) -> Result<Response<ResizeResponse>, Status> {
        self.lacks("resize")
    }

    type AttachStream = futures::stream::Empty<Result<ProcessEvent, Status>>;

    async fn attach(&self, _: Request<AttachRequest>) -> Result<Response<Self::AttachStream>, Status> {
        self.lacks("attach")
    }

    async fn signal(&self, _: Request<SignalRequest>) -> Result<Response<SignalResponse>, Status> {
        self.lacks("signal")
    }

    async fn wait(&self, _: Request<WaitRequest>) -> Result<Response<WaitResponse>, Status> {
        self.lacks("wait")
    }
}
