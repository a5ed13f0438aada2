//! Commands: run to their end ([`execute`]), or started and followed ([`started`]).
//!
//! A [`Command`](sandpod_protocol::v1::Command) becomes a [`Running`](running::Running) process below
//! a supervisor ([`supervisor`]), so that all its descendants can be found and killed ([`tree`]).

mod execute;
mod history;
mod input;
mod launch;
mod network_note;
mod output_quota;
mod overflow;
mod running;
mod shell;
mod started;
mod streams;
mod supervisor;
mod terminal;
pub(crate) mod tree;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use sandpod_protocol::v1::process_server::Process;
use sandpod_protocol::v1::{
    AttachRequest, CancelRequest, CancelResponse, Command, ErrorCode, ExecuteRequest, ExecuteResponse,
    InputRequest, InputResponse, ListProcessesRequest, ListProcessesResponse, Policy, ResizeRequest,
    ResizeResponse, SignalRequest, SignalResponse, StartRequest, StartResponse, WaitRequest, WaitResponse,
};
use sandpod_protocol::{Failure, limits};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Request, Response, Status};

use crate::policy::{self, Probe, Restriction, Rules};
use crate::session::binding::Binding;
use crate::session::records::Records;
use crate::watchdog::Watchdog;

pub(crate) use execute::NEVER_STARTED;
pub(crate) use launch::{Launch, check_env, no_streams};
pub(crate) use running::{Children, EVERY_CHILD, Running};
pub(crate) use streams::{Streams, empty_input};

use shell::ShellSessions;
use started::ProcessTable;

/// Writes to standard inputs that may wait at the same time; each holds its data.
const MAX_INPUTS: usize = 64;

/// Implements the protocol's `Process` service.
pub(crate) struct ProcessService {
    records: Records,
    binding: Arc<Binding>,
    children: Arc<Children>,
    /// Environment of every command, before Bind and the call add to it.
    env: BTreeMap<String, String>,
    kernel: Probe,
    slots: Arc<Semaphore>,
    inputs: Arc<Semaphore>,
    table: Arc<ProcessTable>,
    shells: Arc<ShellSessions>,
    watchdog: Arc<Watchdog>,
}

impl ProcessService {
    pub(crate) fn new(
        records: Records,
        binding: Arc<Binding>,
        children: Arc<Children>,
        env: BTreeMap<String, String>,
        kernel: Probe,
        watchdog: Arc<Watchdog>,
        state_dir: &Path,
    ) -> Self {
        let slots = Arc::new(Semaphore::new(limits::MAX_PROCESSES));
        let inputs = Arc::new(Semaphore::new(MAX_INPUTS));
        let table = Arc::new(ProcessTable::new(state_dir.join("output")));
        let shells = Arc::new(ShellSessions::restore(state_dir.join("shells")));
        Self { records, binding, children, env, kernel, slots, inputs, table, shells, watchdog }
    }

    fn launch(&self, command: Option<Command>) -> Result<Launch, Failure> {
        let mut command = command
            .ok_or_else(|| Failure::new(ErrorCode::InvalidArgument, "the call names no command to run"))?;
        let restriction = self.restriction(command.policy.take())?;
        let mut env = self.env.clone();
        env.extend(self.binding.env());
        put_user_programs_first(&mut env);
        Launch::new(command, env, &self.binding.working_dir(), restriction, &self.shells)
    }

    /// Builds the restriction of a command from the sandbox's policy and its own. The inner error is the reason why
    /// required rules cannot be enforced.
    fn restriction(&self, policy: Option<Policy>) -> Result<Result<Restriction, String>, Failure> {
        let bound = self.binding.policy().map(|policy| Rules::new(&policy)).transpose()?;
        let own = policy.map(|policy| Rules::new(&policy::resolve(policy)?)).transpose()?;
        if let (Some(own), Some(bound)) = (&own, &bound) {
            own.check_within(bound)?;
        }
        let rules: Vec<_> = bound.iter().chain(&own).collect();
        let held = rules.iter().try_for_each(|rules| self.kernel.result().check(rules));
        let restriction =
            || Restriction::new(self.kernel.result(), &rules).map_err(|error| error.to_string());
        Ok(held.and_then(|()| restriction()))
    }

    fn slot(&self) -> Result<OwnedSemaphorePermit, Failure> {
        self.slots.clone().try_acquire_owned().map_err(|_| too_many("commands run", limits::MAX_PROCESSES))
    }
}

#[tonic::async_trait]
impl Process for ProcessService {
    type AttachStream = started::Events;

    async fn execute(&self, request: Request<ExecuteRequest>) -> Result<Response<ExecuteResponse>, Status> {
        let ExecuteRequest { operation, command } = request.into_inner();
        let launch = self.launch(command)?;
        let slot = self.slot();
        let (children, watchdog) = (self.children.clone(), self.watchdog.clone());
        let work =
            |context| async move { Ok(execute::execute(launch, slot?, &children, &watchdog, context).await) };
        Ok(Response::new(self.records.once(operation, work).await?))
    }

    async fn cancel(&self, request: Request<CancelRequest>) -> Result<Response<CancelResponse>, Status> {
        let request = request.into_inner();
        self.records.cancel(&request.session, request.number);
        Ok(Response::new(CancelResponse {}))
    }

    async fn start(&self, request: Request<StartRequest>) -> Result<Response<StartResponse>, Status> {
        let mut request = request.into_inner();
        let operation = request.operation.take();
        let launch = self.launch(request.command.take())?;
        let slot = self.slot();
        let (children, table, watchdog) = (self.children.clone(), self.table.clone(), self.watchdog.clone());
        let work = |_| async move {
            let process = table.start(launch, &request, slot?, &children, &watchdog);
            // The follower of a paced process gets this from its output.
            if let (false, Ok(started)) = (request.paced, table.find(&process)) {
                started.executed_or_ended().await;
            }
            Ok(StartResponse { process })
        };
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
        Ok(Response::new(ListProcessesResponse { processes: self.table.list() }))
    }

    async fn input(&self, request: Request<InputRequest>) -> Result<Response<InputResponse>, Status> {
        let InputRequest { operation, process, data, end } = request.into_inner();
        let process = self.table.find(&process)?;
        let permit = self.inputs.clone().try_acquire_owned();
        let work = |_| async move {
            let _permit = permit.map_err(|_| too_many("writes wait for processes to read", MAX_INPUTS))?;
            process.input(data, end).await.map(|()| InputResponse {})
        };
        Ok(Response::new(self.records.once(operation, work).await?))
    }

    async fn resize(&self, request: Request<ResizeRequest>) -> Result<Response<ResizeResponse>, Status> {
        let ResizeRequest { operation, process, terminal } = request.into_inner();
        let process = self.table.find(&process)?;
        let size = terminal.unwrap_or_default();
        let work = |_| async move { process.resize(size).map(|()| ResizeResponse {}) };
        Ok(Response::new(self.records.once(operation, work).await?))
    }

    async fn wait(&self, request: Request<WaitRequest>) -> Result<Response<WaitResponse>, Status> {
        let process = self.table.find(&request.into_inner().process)?;
        Ok(Response::new(WaitResponse { exit: Some(process.ended().await) }))
    }
}

fn too_many(what: &str, most: usize) -> Failure {
    Failure::new(ErrorCode::Limit, format!("{most} {what} already: wait for one to end"))
}

/// Puts the directory of `pip install --user` before the image's in `PATH`.
fn put_user_programs_first(env: &mut BTreeMap<String, String>) {
    if let (Some(home), Some(path)) = (env.get("HOME"), env.get("PATH")) {
        let path = format!("{home}/.local/bin:{path}");
        env.insert("PATH".to_owned(), path);
    }
}
