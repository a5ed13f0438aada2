//! A fake guest with scripted faults.

#![expect(clippy::unwrap_used, reason = "only tests use it")]

mod files;

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt as _};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use sandpod_client::{ByteStream, Connection, DialError, Dialer, Options, Sandbox};
use sandpod_protocol::v1::command::What;
use sandpod_protocol::v1::files_server::FilesServer;
use sandpod_protocol::v1::process_server::{Process, ProcessServer};
use sandpod_protocol::v1::session_server::{Session, SessionServer};
use sandpod_protocol::v1::{self, Operation, ProcessEvent};
use sandpod_protocol::{Failure, PREAMBLE, limits};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tower_service::Service as _;

/// Outcome of one dial.
#[derive(Clone)]
pub(crate) enum Dial {
    Unreachable,
    Gone,
    Denied,
    /// A stream on which these bytes are sent.
    Says(&'static [u8]),
    /// A stream on which nothing is sent.
    Silent,
}

/// A fault of one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// The work is done, then the stream breaks.
    CutBeforeAnswer,
    /// The work is done, then the guest restarts.
    RestartBeforeAnswer,
    /// The work is done, then the guest loses the session and the stream breaks.
    ForgetBeforeAnswer,
    /// The call ends without an answer, and the stream stays open.
    Abandon,
    /// The stream breaks when an upload has begun.
    CutOnTheWay,
    /// No answer.
    Stall,
    /// An invalid answer.
    Garbage,
    /// An answer that announces two gigabytes.
    Huge,
}

/// A fault of one download.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Lie {
    #[default]
    None,
    Short,
    NoTrailer,
    Checksum,
    TooMuch,
    EmptyChunks,
    NoHeader,
    /// The announced size, and the content, exceed those of the file.
    Larger,
    /// The stream breaks after the first chunk.
    Cut,
    /// No data after the first chunk.
    Stall,
}

/// A part of a tree.
pub(crate) type TreePart = v1::download_tree_response::Part;

/// The next message on an attached stream.
pub(crate) enum Said {
    Event(ProcessEvent),
    /// The stream breaks.
    Cut,
}

/// The outcomes of a session's calls, by number.
type Calls = HashMap<u64, watch::Receiver<Option<Bytes>>>;

#[derive(Default)]
pub(crate) struct World {
    /// All Binds, each with the number of calls executed before it.
    pub(crate) binds: Mutex<Vec<(usize, v1::BindRequest)>>,
    pub(crate) bind_refusal: Mutex<Option<Failure>>,
    /// The answer's policy of a Bind.
    pub(crate) policy_sha256: Mutex<Bytes>,
    pub(crate) dials: AtomicUsize,
    dialing: AtomicUsize,
    pub(crate) most_dialing: AtomicUsize,
    /// Outcomes of the next dials; later dials succeed.
    pub(crate) dial_script: Mutex<VecDeque<Dial>>,
    /// Outcome of all dials beyond the script.
    pub(crate) dial_default: Mutex<Option<Dial>>,
    pub(crate) faults: Mutex<VecDeque<Fault>>,
    /// The fault of every call.
    pub(crate) fault_default: Mutex<Option<Fault>>,
    pub(crate) lies: Mutex<VecDeque<Lie>>,
    /// Number of executed commands and writes.
    pub(crate) runs: AtomicUsize,
    pub(crate) operations: Mutex<Vec<Operation>>,
    pub(crate) cancelled: Mutex<Vec<u64>>,
    pub(crate) attached_from: Mutex<Vec<u64>>,
    /// Answers of the next attaches.
    pub(crate) events: Mutex<VecDeque<Vec<Said>>>,
    /// The processes to list.
    pub(crate) processes: Mutex<Vec<v1::ProcessInfo>>,
    /// Input written to a process.
    pub(crate) input: Mutex<Vec<u8>>,
    pub(crate) sizes: Mutex<Vec<v1::Terminal>>,
    /// The last request to start a process.
    pub(crate) started: Mutex<Option<v1::StartRequest>>,
    pub(crate) file: Mutex<Bytes>,
    /// Answers of the next tree downloads; after them the streams break.
    pub(crate) trees: Mutex<VecDeque<Vec<TreePart>>>,
    /// Ends the command `wait`.
    pub(crate) release: Notify,
    pub(crate) open_streams: AtomicUsize,
    /// The network silently drops all bytes in both directions.
    black_hole: AtomicBool,
    boot: AtomicUsize,
    sessions: Mutex<HashMap<String, Calls>>,
    cut: Mutex<CancellationToken>,
}

/// Returns a fake and its sandbox.
pub(crate) fn sandbox() -> (Fake, Sandbox) {
    let fake = Fake(Arc::default());
    let sandbox = fake.client();
    (fake, sandbox)
}

#[derive(Clone)]
pub(crate) struct Fake(pub Arc<World>);

impl std::ops::Deref for Fake {
    type Target = World;

    fn deref(&self) -> &World {
        &self.0
    }
}

impl Fake {
    pub(crate) fn client(&self) -> Sandbox {
        Sandbox::new(Connection::new(self.clone(), Options::default()))
    }

    pub(crate) fn fault(&self, fault: Fault) {
        self.faults.lock().unwrap().push_back(fault);
    }

    pub(crate) fn holds(&self, content: Bytes) {
        *self.file.lock().unwrap() = content;
    }

    pub(crate) fn lie(&self, lie: Lie) {
        self.lies.lock().unwrap().push_back(lie);
    }

    pub(crate) fn dial(&self, dial: Dial) {
        self.dial_script.lock().unwrap().push_back(dial);
    }

    pub(crate) fn dial_always(&self, dial: Dial) {
        *self.dial_default.lock().unwrap() = Some(dial);
    }

    pub(crate) fn events(&self, events: Vec<Said>) {
        self.events.lock().unwrap().push_back(events);
    }

    pub(crate) fn dials(&self) -> usize {
        self.dials.load(Ordering::SeqCst)
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    pub(crate) fn operations(&self) -> Vec<Operation> {
        self.operations.lock().unwrap().clone()
    }

    /// Breaks all open streams.
    pub(crate) fn cut(&self) {
        std::mem::take(&mut *self.cut.lock().unwrap()).cancel();
    }

    /// Drops all bytes on every stream from now on. New streams open and stay silent.
    pub(crate) fn drop_packets(&self) {
        self.black_hole.store(true, Ordering::SeqCst);
        self.dial_always(Dial::Silent);
    }

    /// Delivers bytes of new streams again; the old ones are lost.
    pub(crate) fn deliver_packets_again(&self) {
        *self.dial_default.lock().unwrap() = None;
        self.cut();
        self.black_hole.store(false, Ordering::SeqCst);
    }

    /// Breaks all streams after the bytes of earlier answers were sent, and never resolves.
    async fn cut_after_sent_answers<T>(&self) -> T {
        tokio::time::sleep(Duration::from_millis(200)).await;
        self.cut();
        std::future::pending().await
    }

    /// Deletes all sessions and takes a new boot id.
    pub(crate) fn restart(&self) {
        self.boot.fetch_add(1, Ordering::SeqCst);
        self.sessions.lock().unwrap().clear();
        self.cut();
    }

    /// Waits until a condition holds.
    pub(crate) async fn until(&self, condition: impl Fn(&World) -> bool) {
        let wait = async {
            while !condition(&self.0) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), wait).await.expect("the condition never held");
    }

    async fn serve(self, mut io: DuplexStream) {
        let cut = self.cut.lock().unwrap().clone();
        let serving = async {
            io.write_all(PREAMBLE).await.unwrap();
            let service = hyper::service::service_fn(|request| self.clone().route(request));
            let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(limits::MAX_CALLS)
                .initial_stream_window_size(limits::STREAM_WINDOW)
                .serve_connection(TokioIo::new(io), service);
            let _ = connection.await;
        };
        self.open_streams.fetch_add(1, Ordering::SeqCst);
        tokio::select! {
            () = serving => {}
            () = cut.cancelled() => {}
        }
        self.open_streams.fetch_sub(1, Ordering::SeqCst);
    }

    async fn route(
        self,
        request: hyper::Request<Incoming>,
    ) -> Result<hyper::Response<tonic::body::Body>, Infallible> {
        let path = request.uri().path().to_owned();
        match path.split('/').nth(1) {
            Some("sandpod.v1.Session") => SessionServer::new(self).call(request).await,
            Some("sandpod.v1.Process") => ProcessServer::new(self).call(request).await,
            _ => {
                if let Some(text) = self.nonsense() {
                    let body = tonic::body::Body::new(text.to_owned());
                    let response = hyper::Response::builder().header("content-type", "application/grpc");
                    return Ok(response.header("grpc-status", "0").body(body).unwrap());
                }
                let server = FilesServer::new(self).max_decoding_message_size(limits::MAX_MESSAGE_BYTES);
                server.max_encoding_message_size(limits::MAX_MESSAGE_BYTES).call(request).await
            }
        }
    }

    fn is_next(&self, fault: Fault) -> bool {
        self.faults.lock().unwrap().front() == Some(&fault)
    }

    /// Returns an invalid body if that is the next fault.
    fn nonsense(&self) -> Option<&'static str> {
        let mut faults = self.faults.lock().unwrap();
        let text = match faults.front()? {
            Fault::Garbage => "\0\0\0\0\x01\x0f",
            Fault::Huge => "\0\x7f\x7f\x7f\x7f",
            _ => return None,
        };
        faults.pop_front();
        Some(text)
    }

    async fn once<M: Message + Default>(
        &self,
        operation: Option<Operation>,
        work: impl Future<Output = M> + Send + 'static,
    ) -> Result<Response<M>, Status> {
        let operation = operation.unwrap();
        self.operations.lock().unwrap().push(operation.clone());
        let mut outcome = {
            let mut sessions = self.sessions.lock().unwrap();
            let session = sessions.entry(operation.session).or_default();
            let start = || {
                let (sender, outcome) = watch::channel(None);
                self.runs.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move { sender.send_replace(Some(work.await.encode_to_vec().into())) });
                outcome
            };
            session.entry(operation.number).or_insert_with(start).clone()
        };
        let bytes: Option<Bytes> = outcome.wait_for(Option::is_some).await.unwrap().clone();
        self.fail().await?;
        Ok(Response::new(M::decode(bytes.unwrap()).unwrap()))
    }

    /// Applies the next fault.
    async fn fail(&self) -> Result<(), Status> {
        let fault = self.faults.lock().unwrap().pop_front();
        let fault = fault.or(*self.fault_default.lock().unwrap());
        match fault {
            Some(Fault::CutBeforeAnswer | Fault::CutOnTheWay) => self.cut(),
            Some(Fault::RestartBeforeAnswer) => self.restart(),
            Some(Fault::ForgetBeforeAnswer) => {
                self.sessions.lock().unwrap().clear();
                self.cut();
            }
            Some(Fault::Abandon) => panic!("the fake guest abandons this call"),
            Some(Fault::Stall) => {}
            Some(Fault::Garbage | Fault::Huge) | None => return Ok(()),
        }
        std::future::pending().await
    }
}

impl Dialer for Fake {
    fn dial(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, DialError>> {
        Box::pin(async move {
            self.dials.fetch_add(1, Ordering::SeqCst);
            let dialing = self.dialing.fetch_add(1, Ordering::SeqCst) + 1;
            self.most_dialing.fetch_max(dialing, Ordering::SeqCst);
            tokio::task::yield_now().await;
            self.dialing.fetch_sub(1, Ordering::SeqCst);
            let dial = self.dial_script.lock().unwrap().pop_front();
            let dial = dial.or_else(|| self.dial_default.lock().unwrap().clone());
            let (ours, mut theirs) = tokio::io::duplex(256 << 10);
            match dial {
                Some(Dial::Unreachable) => {
                    return Err(DialError::Unreachable("the node is rebooting".to_owned()));
                }
                Some(Dial::Gone) => return Err(DialError::Gone("the Pod was evicted".to_owned())),
                Some(Dial::Denied) => return Err(DialError::Denied("pods/exec is forbidden".to_owned())),
                Some(Dial::Says(text)) => theirs.write_all(text).await.unwrap(),
                Some(Dial::Silent) => {
                    tokio::spawn(async move {
                        tokio::time::sleep(Duration::from_secs(3600)).await;
                        drop(theirs);
                    });
                }
                None => drop(tokio::spawn(self.clone().serve(theirs))),
            }
            Ok(Box::new(Wire { inner: ours, fake: self.clone() }) as Box<dyn ByteStream>)
        })
    }
}

#[tonic::async_trait]
impl Session for Fake {
    async fn hello(&self, request: Request<v1::HelloRequest>) -> Result<Response<v1::HelloResponse>, Status> {
        let session = request.into_inner().session;
        let known = self.sessions.lock().unwrap().insert(session.clone(), HashMap::new());
        let session_known = known.is_some();
        if let Some(calls) = known {
            self.sessions.lock().unwrap().insert(session, calls);
        }
        let boot_id = format!("boot-{}", self.boot.load(Ordering::SeqCst));
        Ok(Response::new(v1::HelloResponse { version: 1, boot_id, session_known, ..Default::default() }))
    }

    async fn bind(&self, request: Request<v1::BindRequest>) -> Result<Response<v1::BindResponse>, Status> {
        self.binds.lock().unwrap().push((self.runs(), request.into_inner()));
        if let Some(refusal) = self.bind_refusal.lock().unwrap().clone() {
            return Err(refusal.into());
        }
        let policy_sha256 = self.policy_sha256.lock().unwrap().clone();
        Ok(Response::new(v1::BindResponse { policy_sha256, ..Default::default() }))
    }

    async fn stats(&self, _: Request<v1::StatsRequest>) -> Result<Response<v1::StatsResponse>, Status> {
        Err(Status::unimplemented("not yet"))
    }

    async fn extend(&self, _: Request<v1::ExtendRequest>) -> Result<Response<v1::ExtendResponse>, Status> {
        Err(Status::unimplemented("not yet"))
    }

    async fn end_if_idle(
        &self,
        _: Request<v1::EndIfIdleRequest>,
    ) -> Result<Response<v1::EndIfIdleResponse>, Status> {
        Err(Status::unimplemented("not yet"))
    }
}

#[tonic::async_trait]
impl Process for Fake {
    type AttachStream = BoxStream<'static, Result<ProcessEvent, Status>>;

    async fn execute(
        &self,
        request: Request<v1::ExecuteRequest>,
    ) -> Result<Response<v1::ExecuteResponse>, Status> {
        let request = request.into_inner();
        let Some(What::Line(line)) = request.command.unwrap().what else { panic!("the fake runs lines") };
        let fake = self.clone();
        let work = async move {
            if line == "wait" {
                fake.release.notified().await;
            }
            let exit_code = line.strip_prefix("exit ").map_or(0, |code| code.parse().unwrap());
            v1::ExecuteResponse { output: line.into(), exit_code, ..Default::default() }
        };
        self.once(request.operation, work).await
    }

    async fn cancel(
        &self,
        request: Request<v1::CancelRequest>,
    ) -> Result<Response<v1::CancelResponse>, Status> {
        self.cancelled.lock().unwrap().push(request.into_inner().number);
        self.fail().await?;
        Ok(Response::new(v1::CancelResponse {}))
    }

    async fn start(&self, request: Request<v1::StartRequest>) -> Result<Response<v1::StartResponse>, Status> {
        let mut request = request.into_inner();
        let operation = request.operation.take();
        *self.started.lock().unwrap() = Some(request);
        self.once(operation, async { v1::StartResponse { process: "p1".to_owned() } }).await
    }

    async fn attach(
        &self,
        request: Request<v1::AttachRequest>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        self.attached_from.lock().unwrap().push(request.into_inner().from_offset);
        let events = self.events.lock().unwrap().pop_front().unwrap_or_default();
        let fake = self.clone();
        let stream = futures::stream::iter(events).then(move |event| {
            let fake = fake.clone();
            async move {
                match event {
                    Said::Event(event) => Ok(event),
                    Said::Cut => fake.cut_after_sent_answers().await,
                }
            }
        });
        Ok(Response::new(stream.boxed()))
    }

    async fn signal(
        &self,
        request: Request<v1::SignalRequest>,
    ) -> Result<Response<v1::SignalResponse>, Status> {
        self.once(request.into_inner().operation, async { v1::SignalResponse {} }).await
    }

    async fn wait(&self, _: Request<v1::WaitRequest>) -> Result<Response<v1::WaitResponse>, Status> {
        self.release.notified().await;
        Ok(Response::new(v1::WaitResponse { exit: Some(v1::Exit { exit_code: 3, ..v1::Exit::default() }) }))
    }

    async fn list(
        &self,
        _: Request<v1::ListProcessesRequest>,
    ) -> Result<Response<v1::ListProcessesResponse>, Status> {
        self.fail().await?;
        let processes = self.processes.lock().unwrap().clone();
        Ok(Response::new(v1::ListProcessesResponse { processes }))
    }

    async fn input(&self, request: Request<v1::InputRequest>) -> Result<Response<v1::InputResponse>, Status> {
        let v1::InputRequest { operation, data, end, .. } = request.into_inner();
        let fake = self.clone();
        let work = async move {
            let mut input = fake.input.lock().unwrap();
            input.extend_from_slice(&data);
            if end {
                input.extend_from_slice(b"<end>");
            }
            v1::InputResponse {}
        };
        self.once(operation, work).await
    }

    async fn resize(
        &self,
        request: Request<v1::ResizeRequest>,
    ) -> Result<Response<v1::ResizeResponse>, Status> {
        let v1::ResizeRequest { operation, terminal, .. } = request.into_inner();
        let fake = self.clone();
        let work = async move {
            fake.sizes.lock().unwrap().extend(terminal);
            v1::ResizeResponse {}
        };
        self.once(operation, work).await
    }
}

/// The client's end of a stream over the fake's network.
struct Wire {
    inner: DuplexStream,
    fake: Fake,
}

impl Wire {
    fn is_swallowed(&self) -> bool {
        self.fake.black_hole.load(Ordering::SeqCst)
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if self.is_swallowed() {
            return Poll::Pending;
        }
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        if self.is_swallowed() {
            return Poll::Ready(Ok(data.len()));
        }
        Pin::new(&mut self.inner).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
