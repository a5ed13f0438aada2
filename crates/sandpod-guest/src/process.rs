//! Commands: run to their end ([`execute`]) or started and followed ([`started`]).
//!
//! A [`Command`](sandpod_protocol::v1::Command) becomes a [`Running`](running::Running) process below
//! a warden ([`warden`]), so that all that it starts can be found and ended ([`tree`]).

mod bare;
mod execute;
mod history;
mod launch;
mod running;
mod started;
pub(crate) mod tree;
mod warden;

use std::collections::BTreeMap;
use std::sync::Arc;

use sandpod_protocol::v1::process_server::Process;
use sandpod_protocol::v1::{
    AttachRequest, CancelRequest, CancelResponse, Command, ErrorCode, ExecuteRequest, ExecuteResponse,
    InputRequest, InputResponse, ListProcessesRequest, ListProcessesResponse, ResizeRequest, ResizeResponse,
    SignalRequest, SignalResponse, StartRequest, StartResponse, WaitRequest, WaitResponse,
};
use sandpod_protocol::{Failure, limits};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Request, Response, Status};

use crate::session::binding::Binding;
use crate::session::records::Records;

pub(crate) use launch::{Launch, check_env};
pub(crate) use running::{Children, Running};
pub(crate) use warden::{NotStarted, Setting, Step};

use started::Table;

/// Runs commands.
pub(crate) struct ProcessService {
    records: Records,
    binding: Arc<Binding>,
    children: Arc<Children>,
    /// What every command finds in its environment before Bind and the call add to it.
    env: BTreeMap<String, String>,
    slots: Arc<Semaphore>,
    table: Arc<Table>,
}

impl ProcessService {
    pub(crate) fn new(
        records: Records,
        binding: Arc<Binding>,
        children: Arc<Children>,
        env: BTreeMap<String, String>,
    ) -> Self {
        let slots = Arc::new(Semaphore::new(limits::MAX_PROCESSES));
        Self { records, binding, children, env, slots, table: Arc::default() }
    }

    fn launch(&self, command: Option<Command>) -> Result<Launch, Failure> {
        let command = command
            .ok_or_else(|| Failure::new(ErrorCode::InvalidArgument, "the call names no command to run"))?;
        let mut env = self.env.clone();
        env.extend(self.binding.env());
        put_own_programs_first(&mut env);
        Launch::new(command, env, &self.binding.working_dir())
    }

    fn slot(&self) -> Result<OwnedSemaphorePermit, Failure> {
        self.slots.clone().try_acquire_owned().map_err(|_| {
            let message = format!("{} commands run already: wait for one to end", limits::MAX_PROCESSES);
            Failure::new(ErrorCode::Limit, message)
        })
    }
}

#[tonic::async_trait]
impl Process for ProcessService {
    type AttachStream = started::Events;

    async fn execute(&self, request: Request<ExecuteRequest>) -> Result<Response<ExecuteResponse>, Status> {
        let ExecuteRequest { operation, command } = request.into_inner();
        let launch = self.launch(command)?;
        let slot = self.slot();
        let children = self.children.clone();
        let work = |watchers| async move { Ok(execute::execute(launch, slot?, &children, watchers).await) };
        Ok(Response::new(self.records.once(operation, work).await?))
    }

    async fn cancel(&self, request: Request<CancelRequest>) -> Result<Response<CancelResponse>, Status> {
        let request = request.into_inner();
        self.records.cancel(&request.session, request.number);
        Ok(Response::new(CancelResponse {}))
    }

    async fn start(&self, request: Request<StartRequest>) -> Result<Response<StartResponse>, Status> {
        let StartRequest { operation, command, paced, .. } = request.into_inner();
        let launch = self.launch(command)?;
        let slot = self.slot();
        let (children, table) = (self.children.clone(), self.table.clone());
        let work =
            |_| async move { Ok(StartResponse { process: table.start(launch, paced, slot?, &children) }) };
        Ok(Response::new(self.records.once(operation, work).await?))
    }

    async fn attach(&self, request: Request<AttachRequest>) -> Result<Response<Self::AttachStream>, Status> {
        let request = request.into_inner();
        let process = self.table.find(&request.process)?;
        Ok(Response::new(process.events(request.from_offset)?))
    }

    async fn signal(&self, request: Request<SignalRequest>) -> Result<Response<SignalResponse>, Status> {
        let SignalRequest { operation, process, signal } = request.into_inner();
        let process = self.table.find(&process)?;
        let work = |_| async move { process.signal(signal).await.map(|()| SignalResponse {}) };
        Ok(Response::new(self.records.once(operation, work).await?))
    }

    async fn list(
        &self,
        _: Request<ListProcessesRequest>,
    ) -> Result<Response<ListProcessesResponse>, Status> {
        Err(Status::unimplemented("not yet"))
    }

    async fn input(&self, _: Request<InputRequest>) -> Result<Response<InputResponse>, Status> {
        Err(Status::unimplemented("not yet"))
    }

    async fn resize(&self, _: Request<ResizeRequest>) -> Result<Response<ResizeResponse>, Status> {
        Err(Status::unimplemented("not yet"))
    }

    async fn wait(&self, request: Request<WaitRequest>) -> Result<Response<WaitResponse>, Status> {
        let process = self.table.find(&request.into_inner().process)?;
        Ok(Response::new(WaitResponse { exit: Some(process.ended().await) }))
    }
}
/// What a user installs for itself (`pip install --user`) is found before what the image has.
fn put_own_programs_first(env: &mut BTreeMap<String, String>) {
    if let (Some(home), Some(path)) = (env.get("HOME"), env.get("PATH")) {
        let path = format!("{home}/.local/bin:{path}");
        env.insert("PATH".to_owned(), path);
    }
}
