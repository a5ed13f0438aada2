//! sandboxd's process API, over gRPC. A command lives as long as the call that started it.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::{Stream, StreamExt as _, stream};
use http_body_util::{BodyStream, StreamBody};
use hyper::body::Incoming;
use sandpod_protocol::sandboxd::process_service_server::{ProcessService, ProcessServiceServer};
use sandpod_protocol::sandboxd::start_response::Event as Started;
use sandpod_protocol::sandboxd::write_stdin_request::Payload;
use sandpod_protocol::sandboxd::{
    ExecuteRequest, ExecuteResponse, ExitEvent, InitEvent, ProcessConfig, ResizeTtyRequest,
    ResizeTtyResponse, SendSignalRequest, SendSignalResponse, Signal, StartRequest, StartResponse,
    WriteStdinRequest, WriteStdinResponse,
};
use sandpod_protocol::v1;
use sandpod_protocol::v1::command::What;
use sandpod_protocol::v1::process_event::Event;
use sandpod_protocol::v1::process_server::Process as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::{Request, Response, Status};

use super::guest_calls::{GuestCalls, Job};
use super::root::{FinalLink, Root};
use crate::transport::{self, Answer, Http2Limits, ResponseFuture, until_sent};

/// Maximum size of the output in a response: clients accept up to 4 MiB.
const MAX_OUTPUT_BYTES: usize = (4 << 20) - (16 << 10);

/// Maximum size of all requests in progress, on all connections, because callers are not authenticated.
const MAX_ARRIVING_BYTES: usize = 64 << 20;

/// The API.
#[derive(Clone)]
pub(super) struct Grpc(Arc<Inner>);

struct Inner {
    calls: GuestCalls,
    root: Root,
    running: Arc<Running>,
    /// Bytes that may still arrive.
    arriving: Arc<Semaphore>,
}

/// Started commands by process number.
#[derive(Default)]
struct Running(Mutex<ProcessNumbers>);

#[derive(Default)]
struct ProcessNumbers {
    processes: BTreeMap<i32, NumberedProcess>,
    last: i32,
}

#[derive(Clone)]
struct NumberedProcess {
    /// The guest's name for it.
    process: String,
    has_terminal: bool,
}

impl Grpc {
    pub(super) fn new(calls: GuestCalls, root: Root) -> Self {
        let arriving = Arc::new(Semaphore::new(MAX_ARRIVING_BYTES));
        Self(Arc::new(Inner { calls, root, running: Arc::default(), arriving }))
    }

    /// Serves the calls of one connection.
    pub(super) async fn serve<S>(self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        // A broken connection needs no handling here.
        let _ = transport::answer(Box::new(stream), self.0, &Http2Limits::UNAUTHENTICATED).await;
    }
}

impl Answer for Inner {
    fn answer(self: Arc<Self>, request: http::Request<Incoming>) -> ResponseFuture {
        Box::pin(async move {
            let call = self.calls.guest().activity().begin().await;
            let request = request.map(|body| with_byte_limit(body, self.arriving.clone()));
            Ok(until_sent(Some(call), ProcessServiceServer::from_arc(self).call(request).await?))
        })
    }
}

/// Counts the content of a request against the limit until it is dropped.
fn with_byte_limit(body: Incoming, arriving: Arc<Semaphore>) -> Body {
    let mut taken = None;
    let frames = BodyStream::new(body).map(move |frame| {
        let frame = frame.map_err(|error| Status::from_error(Box::new(error)))?;
        let bytes = frame.data_ref().map_or(0, bytes::Bytes::len);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let more = arriving.clone().try_acquire_many_owned(bytes).map_err(|_| {
            let message =
                format!("more than {MAX_ARRIVING_BYTES} bytes of requests arrive at once: try again later");
            Status::resource_exhausted(message)
        })?;
        match &mut taken {
            None => taken = Some(more),
            Some(taken) => taken.merge(more),
        }
        Ok::<_, Status>(frame)
    });
    Body::new(StreamBody::new(frames))
}

impl Inner {
    async fn command(&self, config: Option<ProcessConfig>) -> Result<v1::Command, Status> {
        let config = config.unwrap_or_default();
        if config.command.is_empty() {
            return Err(Status::invalid_argument("the call names no command to run"));
        }
        let directory = config.cwd.unwrap_or_default();
        Ok(v1::Command {
            what: Some(What::Argv(v1::Argv { words: config.command })),
            env: config.env_vars,
            working_dir: self.calls.resolve(&self.root, &directory, FinalLink::Follow).await?,
            ..v1::Command::default()
        })
    }
}

#[tonic::async_trait]
impl ProcessService for Inner {
    type StartStream = Pin<Box<dyn Stream<Item = Result<StartResponse, Status>> + Send>>;

    async fn start(&self, request: Request<StartRequest>) -> Result<Response<Self::StartStream>, Status> {
        let StartRequest { config, pty } = request.into_inner();
        let request = v1::StartRequest {
            command: Some(self.command(config).await?),
            stdin: true,
            terminal: pty.map(|pty| v1::Terminal { rows: pty.rows, columns: pty.cols }),
            ..v1::StartRequest::default()
        };
        let has_terminal = request.terminal.is_some();
        let job = self.calls.start(request).await?;
        let events = job.events().await?;
        let started = NumberedJob::of(job, has_terminal, &self.running);
        let init = Started::Init(InitEvent { process_id: started.number });
        let init = StartResponse { event: Some(init) };
        // The stream owns the command, which is killed when the stream is dropped.
        let rest = stream::unfold((events, started), |(mut events, mut started)| async {
            let response = events.next().await?.and_then(|event| started.convert(event.event));
            Some((response, (events, started)))
        });
        Ok(Response::new(Box::pin(stream::iter([Ok(init)]).chain(rest))))
    }

    async fn execute(&self, request: Request<ExecuteRequest>) -> Result<Response<ExecuteResponse>, Status> {
        let command = Some(self.command(request.into_inner().config).await?);
        let request = v1::StartRequest { command, ..v1::StartRequest::default() };
        let mut outcome = self.calls.run(request, MAX_OUTPUT_BYTES).await?;
        outcome.explain();
        Ok(Response::new(ExecuteResponse {
            exit_code: outcome.exit.exit_code,
            stdout: outcome.stdout.into(),
            stderr: outcome.stderr.into(),
        }))
    }

    async fn write_stdin(
        &self,
        request: Request<WriteStdinRequest>,
    ) -> Result<Response<WriteStdinResponse>, Status> {
        let WriteStdinRequest { process_id, payload } = request.into_inner();
        let (data, end) = match payload {
            Some(Payload::Input(data)) => (data, false),
            Some(Payload::Eof(())) => (bytes::Bytes::new(), true),
            None => return Err(Status::invalid_argument("the call has neither input nor its end")),
        };
        let process = self.running.find(process_id)?.process;
        let request = v1::InputRequest { operation: Some(self.calls.operation()), process, data, end };
        self.calls.guest().process().input(Request::new(request)).await?;
        Ok(Response::new(WriteStdinResponse {}))
    }

    async fn send_signal(
        &self,
        request: Request<SendSignalRequest>,
    ) -> Result<Response<SendSignalResponse>, Status> {
        let request = request.into_inner();
        let signal = request.signal();
        if signal == Signal::Unspecified {
            return Err(Status::invalid_argument("the call names no signal: 2, 9 and 15 can be sent"));
        }
        let process = self.running.find(request.process_id)?.process;
        let operation = Some(self.calls.operation());
        let request = v1::SignalRequest { operation, process, signal: signal.into() };
        self.calls.guest().process().signal(Request::new(request)).await?;
        Ok(Response::new(SendSignalResponse {}))
    }

    async fn resize_tty(
        &self,
        request: Request<ResizeTtyRequest>,
    ) -> Result<Response<ResizeTtyResponse>, Status> {
        let ResizeTtyRequest { process_id, cols, rows } = request.into_inner();
        let NumberedProcess { process, has_terminal } = self.running.find(process_id)?;
        if !has_terminal {
            return Err(Status::failed_precondition("the process has no terminal: start it with a pty"));
        }
        let (operation, terminal) = (self.calls.operation(), v1::Terminal { rows, columns: cols });
        let request = v1::ResizeRequest { operation: Some(operation), process, terminal: Some(terminal) };
        self.calls.guest().process().resize(Request::new(request)).await?;
        Ok(Response::new(ResizeTtyResponse {}))
    }
}

impl Running {
    fn find(&self, number: i32) -> Result<NumberedProcess, Status> {
        let found = self.lock().processes.get(&number).cloned();
        found.ok_or_else(|| Status::not_found(format!("there is no process {number}: it may have ended")))
    }

    fn lock(&self) -> MutexGuard<'_, ProcessNumbers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A command that has a process number until it is dropped.
struct NumberedJob {
    job: Job,
    number: i32,
    running: Arc<Running>,
}

impl NumberedJob {
    fn of(job: Job, has_terminal: bool, running: &Arc<Running>) -> Self {
        let mut numbered = running.lock();
        numbered.last = numbered.last.checked_add(1).unwrap_or(1);
        let number = numbered.last;
        let process = job.process().to_owned();
        numbered.processes.insert(number, NumberedProcess { process, has_terminal });
        Self { job, number, running: running.clone() }
    }

    /// Converts an event for clients.
    fn convert(&mut self, event: Option<Event>) -> Result<StartResponse, Status> {
        let event = match event {
            Some(Event::Output(output)) if output.stderr => Started::Stderr(output.data),
            Some(Event::Output(output)) => Started::Stdout(output.data),
            Some(Event::Exit(exit)) => {
                self.job.has_ended = true;
                Started::Exit(ExitEvent { exit_code: exit.exit_code })
            }
            // Output waits for this stream, but for a limited time.
            Some(Event::HoleUntil(_)) | None => {
                return Err(Status::data_loss("output was dropped because it was not read for too long"));
            }
        };
        Ok(StartResponse { event: Some(event) })
    }
}

impl Drop for NumberedJob {
    fn drop(&mut self) {
        self.running.lock().processes.remove(&self.number);
    }
}
