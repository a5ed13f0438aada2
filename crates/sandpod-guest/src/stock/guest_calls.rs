//! Calls of the guest's own services, on behalf of the APIs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{Stream, StreamExt as _, stream};
use http_body_util::StreamBody;
use hyper::body::Frame;
use sandpod_protocol::v1::download_response::Part;
use sandpod_protocol::v1::files_server::Files as _;
use sandpod_protocol::v1::process_event::Event;
use sandpod_protocol::v1::process_server::Process as _;
use sandpod_protocol::v1::upload_request::Part as UploadPart;
use sandpod_protocol::v1::{
    AttachRequest, CancelRequest, DeleteRequest, DownloadRequest, ErrorCode, Exit, FileInfo, FileKind,
    ListRequest, Operation, Output, ProcessEvent, SignalRequest, StartRequest, StatRequest, Trailer,
    UploadHeader, UploadRequest,
};
use sandpod_protocol::{Checksum, Failure};
use tokio::sync::mpsc;
use tonic::body::Body;
use tonic::{Request, Status};

use super::body::Content;
use super::http_error::HttpError;
use super::root::{FinalLink, Root};
use crate::Guest;
use crate::files::blocking;

/// SIGKILL, which ends a command that no client waits for.
const KILL: i32 = 9;

/// The guest's services, for callers without a session.
#[derive(Clone)]
pub(super) struct GuestCalls(Arc<Inner>);

struct Inner {
    guest: Guest,
    session: String,
    last: AtomicU64,
}

impl GuestCalls {
    pub(super) fn new(guest: Guest) -> std::io::Result<Self> {
        // Random, so that it differs from the sessions of clients.
        let session = format!("stock-{}", crate::guest::random_id()?);
        Ok(Self(Arc::new(Inner { guest, session, last: AtomicU64::new(0) })))
    }

    pub(super) fn guest(&self) -> &Guest {
        &self.0.guest
    }

    /// Returns a new operation for a mutating call.
    pub(super) fn operation(&self) -> Operation {
        let number = self.0.last.fetch_add(1, Ordering::Relaxed) + 1;
        Operation { session: self.0.session.clone(), number, ..Operation::default() }
    }

    /// Resolves a path of an API to an absolute one.
    pub(super) async fn resolve(&self, root: &Root, path: &str, end: FinalLink) -> Result<String, Failure> {
        let (root, path) = (root.clone(), path.to_owned());
        blocking(move || root.resolve(&path, end)).await
    }

    /// Starts a command that is killed when its [`Job`] is dropped. Its output waits for the reader.
    pub(super) async fn start(&self, request: StartRequest) -> Result<Job, Status> {
        let calls = self.clone();
        // In a task: if the caller is cancelled meanwhile, the command must not be left running.
        let job = tokio::spawn(async move {
            let request = StartRequest { operation: Some(calls.operation()), paced: true, ..request };
            let started = calls.guest().process().start(Request::new(request)).await?;
            Ok(Job { calls, process: started.into_inner().process, has_ended: false })
        });
        job.await.unwrap_or_else(|error| Err(Status::internal(error.to_string())))
    }

    /// Runs a command to its end, and keeps up to `max_output` bytes of its output.
    pub(super) async fn run(&self, request: StartRequest, max_output: usize) -> Result<Outcome, Status> {
        let mut job = self.start(request).await?;
        let mut outcome = Outcome { room: max_output, ..Outcome::default() };
        let mut events = job.events().await?;
        while let Some(event) = events.next().await {
            match event?.event {
                Some(Event::Output(output)) => outcome.keep(&output),
                Some(Event::HoleUntil(_)) => outcome.truncated = true,
                Some(Event::Exit(exit)) => outcome.exit = exit,
                None => {}
            }
        }
        job.has_ended = true;
        Ok(outcome)
    }

    /// Returns the metadata of a path and follows links.
    pub(super) async fn stat(&self, path: &str) -> Result<FileInfo, HttpError> {
        let request = StatRequest { path: path.to_owned(), follow: true };
        let found = self.guest().files().stat(Request::new(request)).await?;
        found
            .into_inner()
            .info
            .ok_or_else(|| Failure::new(ErrorCode::Internal, "nothing is known of it").into())
    }

    /// Returns the entries of a directory by name, sorted. A link with a target has its target's metadata.
    pub(super) async fn list(&self, path: &str) -> Result<Vec<(String, FileInfo)>, HttpError> {
        let request = ListRequest { path: path.to_owned() };
        let listed = self.guest().files().list(Request::new(request)).await?.into_inner();
        let mut entries = Vec::with_capacity(listed.entries.len());
        for entry in listed.entries {
            let name = entry.path.rsplit('/').next().unwrap_or_default().to_owned();
            let followed = match entry.kind() {
                FileKind::Link => self.stat(&entry.path).await.ok(),
                _ => None,
            };
            entries.push((name, followed.unwrap_or(entry)));
        }
        entries.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(entries)
    }

    /// Returns a file's metadata and content. The body fails if the file cannot be read completely.
    pub(super) async fn download(&self, path: String) -> Result<(FileInfo, Body), HttpError> {
        let request = Request::new(DownloadRequest { path });
        let mut parts = self.guest().files().download(request).await?.into_inner();
        let first = parts.next().await.transpose()?.and_then(|response| response.part);
        let Some(Part::Header(header)) = first else {
            return Err(Failure::new(ErrorCode::Internal, "a download has no beginning").into());
        };
        let frames = parts.filter_map(|response| async {
            match response.map(|response| response.part) {
                Ok(Some(Part::Chunk(chunk))) => Some(Ok(Frame::data(chunk))),
                Ok(_) => None,
                Err(status) => Some(Err(status)),
            }
        });
        Ok((header, Body::new(StreamBody::new(Box::pin(frames)))))
    }

    /// Writes a file, with the directories above it.
    pub(super) async fn upload(
        &self,
        path: String,
        mode: Option<u32>,
        content: &mut impl Content,
    ) -> Result<(), HttpError> {
        let operation = self.operation();
        let cancel = CancelRequest { session: operation.session.clone(), number: operation.number };
        let header = UploadHeader { operation: Some(operation), path, mode };
        let (sender, mut parts) = mpsc::channel(1);
        let mut received =
            Box::pin(self.guest().files().receive(stream::poll_fn(move |context| parts.poll_recv(context))));
        tokio::select! {
            biased; // it may be refused before its content has arrived
            received = &mut received => return Ok(received.map(drop)?),
            sent = send(header, content, sender) => if let Err(error) = sent {
                self.guest().process().cancel(Request::new(cancel)).await?;
                return Err(error);
            },
        }
        Ok(received.await.map(drop)?)
    }

    /// Deletes a file, a link, or a directory: with its contents, or only if it is empty.
    pub(super) async fn delete(&self, path: String, only_empty: bool) -> Result<(), HttpError> {
        let request = DeleteRequest { operation: Some(self.operation()), path, only_empty };
        self.guest().files().delete(Request::new(request)).await?;
        Ok(())
    }
}

/// Sends content as an upload's parts. A closed channel means that the upload has its result already.
async fn send(
    header: UploadHeader,
    content: &mut impl Content,
    parts: mpsc::Sender<Result<UploadRequest, Status>>,
) -> Result<(), HttpError> {
    let mut checksum = Checksum::default();
    let part = |part| Ok(UploadRequest { part: Some(part) });
    let _ = parts.send(part(UploadPart::Header(header))).await;
    while let Some(chunk) = content.next().await? {
        checksum.update(&chunk);
        let _ = parts.send(part(UploadPart::Chunk(chunk))).await;
    }
    let checksum = checksum.finish();
    let _ = parts.send(part(UploadPart::Trailer(Trailer { checksum }))).await;
    Ok(())
}

/// A started command. Dropping it kills the command and its descendants.
pub(super) struct Job {
    calls: GuestCalls,
    process: String,
    /// Whether it has ended by itself, so that its background processes may stay.
    pub(super) has_ended: bool,
}

impl Job {
    /// Returns the guest's name for it.
    pub(super) fn process(&self) -> &str {
        &self.process
    }

    /// Returns its output and its exit.
    pub(super) async fn events(
        &self,
    ) -> Result<impl Stream<Item = Result<ProcessEvent, Status>> + Send + Unpin + use<>, Status> {
        let request = AttachRequest { process: self.process.clone(), from_offset: 0 };
        Ok(self.calls.guest().process().attach(Request::new(request)).await?.into_inner())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let (calls, process) = (self.calls.clone(), std::mem::take(&mut self.process));
        tokio::spawn(async move {
            let request = SignalRequest { operation: Some(calls.operation()), process, signal: KILL };
            // This fails for a process that has ended, which needs no signal.
            let _ = calls.guest().process().signal(Request::new(request)).await;
        });
    }
}

/// A command's exit and its output up to a limit.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) exit: Exit,
    pub(super) truncated: bool,
    room: usize,
}

impl Outcome {
    fn keep(&mut self, output: &Output) {
        let kept = output.data.len().min(self.room);
        self.room -= kept;
        self.truncated |= kept < output.data.len();
        let all = if output.stderr { &mut self.stderr } else { &mut self.stdout };
        all.extend_from_slice(&output.data[..kept]);
    }

    /// Adds notes for which the APIs have no field to the standard error output.
    pub(super) fn explain(&mut self) {
        if self.truncated {
            self.add_line("sandpod: there was more output than fits into the answer; the rest is dropped");
        }
        let note = std::mem::take(&mut self.exit.note);
        if !note.is_empty() {
            self.add_line(&note);
        }
    }

    /// Adds a line to the standard error output.
    pub(super) fn add_line(&mut self, line: &str) {
        sandpod_text::output::add_line(&mut self.stderr, line);
    }
}
