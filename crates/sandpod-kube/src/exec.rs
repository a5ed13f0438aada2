//! Runs commands in a Pod through `pods/exec`.
//!
//! [`open`] starts a command and returns its [`Exec`]: an [`Input`], two [`Output`]s and the [`Exit`]. The parts are
//! independent, so different tasks can own them. [`run`] runs a command to its end, and [`stream`] joins input and output
//! into one byte stream.
//!
//! One task reads the WebSocket and one writes it, so neither direction waits for the other. Every queue is bounded.
//! Dropping a part closes it and discards its remaining data; dropping all parts closes the connection. That does not kill
//! the command: Kubernetes has no request for it.
//!
//! The exit code comes last, after all output. If the connection is lost before, each part returns [`Error::Lost`]: none
//! hangs, and no reader confuses the loss with the end of the output.

mod frame;
mod stream;

use std::fmt;
use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::api::AttachParams;
use kube::core::Request;
use kube::{Client, Resource};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error as WebSocketError, Message};

use self::frame::Frame;
pub use self::stream::{ExecStream, stream};
use crate::{Error, Result};

type Socket = WebSocketStream<TokioIo<Upgraded>>;
type Writer = JoinHandle<Result<(), WebSocketError>>;

/// The capacity of each queue, in messages. The kubelet sends at most 32 KiB in one, so a queue holds half a MiB.
const QUEUE: usize = 16;

/// The largest input of one message.
const MAX_INPUT_FRAME: usize = 64 * 1024;

/// How long to wait for the other direction once one is done: the server closes the connection right after the exit
/// code, and an exit code may be on its way when a write fails.
const LAST_WORD: Duration = Duration::from_secs(2);

/// A Pod, by namespace and name.
///
/// ```
/// use sandpod_kube::exec::PodRef;
///
/// assert_eq!(PodRef::new("agents", "box").to_string(), "agents/box");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl PodRef {
    /// Refers to the Pod `name` in `namespace`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The stdin of a command.
///
/// ```
/// assert_ne!(sandpod_kube::exec::Stdin::None, sandpod_kube::exec::Stdin::Piped);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdin {
    /// The command reads end of file at once.
    None,
    /// The command reads what is sent to [`Exec::stdin`].
    Piped,
}

/// A running command in a Pod. Its fields are independent and can be moved to different tasks.
///
/// ```no_run
/// # async fn example(client: &kube::Client) -> sandpod_kube::Result<()> {
/// use sandpod_kube::exec::{self, Exec, PodRef, Stdin};
///
/// let pod = PodRef::new("agents", "box");
/// let Exec { mut stdout, exit, .. } = exec::open(client, &pod, ["ls", "-l"], Stdin::None).await?;
/// while let Some(chunk) = stdout.next().await? {
///     assert!(!chunk.is_empty());
/// }
/// assert_eq!(exit.code().await?, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Exec {
    /// The input, if the command was opened with [`Stdin::Piped`].
    pub stdin: Option<Input>,
    /// The standard output.
    pub stdout: Output,
    /// The standard error.
    pub stderr: Output,
    /// The end of the command.
    pub exit: Exit,
}

/// Starts `command` in the only container of `pod`. No shell is involved: the first word is the program.
///
/// It has no time limit. Dropping the future cancels the request; the command may run nonetheless.
///
/// ```no_run
/// # async fn example(client: &kube::Client) -> sandpod_kube::Result<()> {
/// use sandpod_kube::exec::{self, PodRef, Stdin};
///
/// let exec = exec::open(client, &PodRef::new("agents", "box"), ["sleep", "1"], Stdin::None).await?;
/// assert_eq!(exec.exit.code().await?, 0);
/// # Ok(())
/// # }
/// ```
pub async fn open<I>(client: &Client, pod: &PodRef, command: I, stdin: Stdin) -> Result<Exec>
where
    I: IntoIterator,
    I::Item: Into<String>,
{
    open_in(client, pod, None, command, stdin).await
}

/// Starts `command` in the named container, or in the only one.
async fn open_in<I>(
    client: &Client,
    pod: &PodRef,
    container: Option<&str>,
    command: I,
    stdin: Stdin,
) -> Result<Exec>
where
    I: IntoIterator,
    I::Item: Into<String>,
{
    let refused = |cause| Error::Open { pod: pod.clone(), cause: Box::new(cause) };
    let streams = AttachParams { container: container.map(str::to_owned), ..AttachParams::default() };
    let streams = streams.stdin(stdin == Stdin::Piped);
    let request = Request::new(Pod::url_path(&(), Some(&pod.namespace)))
        .exec(&pod.name, command, &streams)
        .map_err(|cause| refused(kube::Error::BuildRequest(cause)))?;
    let connection = client.connect(request).await.map_err(refused)?;
    let closable = connection.supports_stream_close();
    Ok(start(connection.into_stream(), pod, stdin, closable))
}

/// The input of a command. Dropping it ends the input, as [`Input::close`] does.
///
/// ```no_run
/// # async fn example(client: &kube::Client) -> sandpod_kube::Result<()> {
/// use sandpod_kube::exec::{self, PodRef, Stdin};
///
/// let exec = exec::open(client, &PodRef::new("agents", "box"), ["wc", "-c"], Stdin::Piped).await?;
/// let mut stdin = exec.stdin.expect("it is piped");
/// stdin.send("hello".into()).await?;
/// stdin.close()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Input {
    queue: mpsc::Sender<Bytes>,
    closable: bool,
    ending: Ending,
}

impl Input {
    /// Sends `data`. Waits while the command does not read.
    ///
    /// Cancel-safe: a dropped call has sent all of `data` or nothing.
    pub async fn send(&mut self, data: Bytes) -> Result<()> {
        if self.queue.send(data).await.is_ok() {
            return Ok(());
        }
        let pod = self.ending.pod.clone();
        match self.ending.wait().await {
            End::Lost(reason) => Err(Error::Lost { pod, reason }),
            End::Exited(_) | End::NotRun(_) => Err(Error::InputClosed { pod }),
        }
    }

    /// Ends the input: the command reads end of file after the sent data.
    ///
    /// Kubernetes before 1.30 (protocol v4) does not support that: then this returns [`Error::CloseUnsupported`], and the
    /// command waits for more input.
    pub fn close(self) -> Result<()> {
        if self.closable { Ok(()) } else { Err(Error::CloseUnsupported { pod: self.ending.pod }) }
    }
}

/// The output of a command, in chunks.
///
/// Read an output or drop it: an output that is not read blocks all that comes after it, also the exit code, once its
/// queue is full. [`Exec`] has an example.
#[derive(Debug)]
pub struct Output {
    queue: mpsc::Receiver<Bytes>,
    ending: Ending,
}

impl Output {
    /// Returns the next chunk, which is never empty, or `None` when the command has ended and all was read. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        if let Some(chunk) = self.queue.recv().await {
            return Ok(Some(chunk));
        }
        match self.ending.wait().await {
            End::Lost(reason) => Err(Error::Lost { pod: self.ending.pod.clone(), reason }),
            End::Exited(_) | End::NotRun(_) => Ok(None),
        }
    }
}

/// The end of a command. [`open`] has an example.
#[derive(Debug)]
pub struct Exit {
    ending: Ending,
}

impl Exit {
    /// Returns the exit code, which comes after all output.
    pub async fn code(mut self) -> Result<i32> {
        let end = self.ending.wait().await;
        let pod = self.ending.pod;
        match end {
            End::Exited(code) => Ok(code),
            End::NotRun(message) => Err(Error::NotRun { pod, message }),
            End::Lost(reason) => Err(Error::Lost { pod, reason }),
        }
    }
}

/// The results of a command.
///
/// ```
/// let finished = sandpod_kube::exec::Finished::default();
/// assert_eq!((finished.exit_code, finished.truncated), (0, false));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    /// The standard output.
    pub stdout: Bytes,
    /// The standard error.
    pub stderr: Bytes,
    /// The exit code.
    pub exit_code: i32,
    /// Whether `stdout` or `stderr` was cut at the limit.
    pub truncated: bool,
}

/// Runs `command` in `pod` to its end, with `input` as its whole stdin.
///
/// At most `limit` bytes of stdout and of stderr are kept. The rest is read and discarded, so that the command runs to its
/// end. A command need not read all of its input.
///
/// ```no_run
/// # async fn example(client: &kube::Client) -> sandpod_kube::Result<()> {
/// use sandpod_kube::exec::{self, PodRef};
///
/// let pod = PodRef::new("agents", "box");
/// let sum = exec::run(client, &pod, ["sha256sum"], Some("hello".into()), 1024).await?;
/// assert_eq!(sum.exit_code, 0);
/// # Ok(())
/// # }
/// ```
pub async fn run<I>(
    client: &Client,
    pod: &PodRef,
    command: I,
    input: Option<Bytes>,
    limit: usize,
) -> Result<Finished>
where
    I: IntoIterator,
    I::Item: Into<String>,
{
    let stdin = if input.is_some() { Stdin::Piped } else { Stdin::None };
    let exec = open(client, pod, command, stdin).await?;
    let ((), stdout, stderr, exit_code) = tokio::try_join!(
        feed(exec.stdin, input.unwrap_or_default()),
        collect(exec.stdout, limit),
        collect(exec.stderr, limit),
        exec.exit.code(),
    )?;
    Ok(Finished { truncated: stdout.1 || stderr.1, stdout: stdout.0, stderr: stderr.0, exit_code })
}

async fn feed(stdin: Option<Input>, input: Bytes) -> Result<()> {
    let Some(mut stdin) = stdin else {
        return Ok(());
    };
    match stdin.send(input).await {
        Ok(()) => stdin.close(),
        Err(Error::InputClosed { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the first `limit` bytes, and whether there were more.
async fn collect(mut output: Output, limit: usize) -> Result<(Bytes, bool)> {
    let mut kept = BytesMut::new();
    let mut truncated = false;
    while let Some(chunk) = output.next().await? {
        let room = chunk.len().min(limit - kept.len());
        kept.extend_from_slice(&chunk[..room]);
        truncated |= room < chunk.len();
    }
    Ok((kept.freeze(), truncated))
}

/// How a command ended, as far as known.
#[derive(Clone, Debug, PartialEq)]
enum End {
    Exited(i32),
    NotRun(String),
    Lost(String),
}

/// Shared by the parts of an [`Exec`]. When the last part is dropped, the connection is closed.
#[derive(Clone, Debug)]
struct Ending {
    pod: PodRef,
    end: watch::Receiver<Option<End>>,
}

impl Ending {
    async fn wait(&mut self) -> End {
        let end = self.end.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
        // Without an end the task is gone, because its runtime shuts down.
        end.unwrap_or_else(|| End::Lost("the runtime that carried it was shut down".to_owned()))
    }
}

fn start(socket: Socket, pod: &PodRef, stdin: Stdin, closable: bool) -> Exec {
    let (sink, stream) = socket.split();
    let (input, input_queue) = mpsc::channel(QUEUE);
    let (stdout, stdout_queue) = mpsc::channel(QUEUE);
    let (stderr, stderr_queue) = mpsc::channel(QUEUE);
    let (end, end_watch) = watch::channel(None);

    let writer = tokio::spawn(write(sink, input_queue, stdin == Stdin::Piped && closable));
    tokio::spawn(carry(stream, stdout, stderr, writer, end));

    let ending = Ending { pod: pod.clone(), end: end_watch };
    Exec {
        stdin: (stdin == Stdin::Piped).then(|| Input { queue: input, closable, ending: ending.clone() }),
        stdout: Output { queue: stdout_queue, ending: ending.clone() },
        stderr: Output { queue: stderr_queue, ending: ending.clone() },
        exit: Exit { ending },
    }
}

/// Reads until the end is known or every part is dropped, and publishes the end.
async fn carry(
    stream: SplitStream<Socket>,
    stdout: mpsc::Sender<Bytes>,
    stderr: mpsc::Sender<Bytes>,
    mut writer: Writer,
    end: watch::Sender<Option<End>>,
) {
    let known = tokio::select! {
        known = read(stream, stdout, stderr, &mut writer) => Some(known),
        () = end.closed() => None,
    };
    writer.abort();
    end.send_replace(known);
}

/// Passes output on until the server closes the connection, and returns the end.
async fn read(
    mut stream: SplitStream<Socket>,
    stdout: mpsc::Sender<Bytes>,
    stderr: mpsc::Sender<Bytes>,
    writer: &mut Writer,
) -> End {
    let mut status = BytesMut::new();
    let mut end = None;
    let mut deadline = None;
    let mut failure = pin!(failure(writer));
    let lost = loop {
        // Received output is passed on first, however slow the reader is: only silence ends the wait.
        let message = tokio::select! {
            biased;
            message = stream.next() => message,
            reason = &mut failure => break reason,
            () = passed(deadline) => None,
        };
        match message {
            Some(Ok(Message::Binary(message))) => match frame::decode(message) {
                Frame::Stdout(chunk) => deliver(&stdout, chunk).await,
                Frame::Stderr(chunk) => deliver(&stderr, chunk).await,
                Frame::Status(part) if end.is_none() => {
                    status.extend_from_slice(&part);
                    end = frame::end(&status);
                    deadline = end.as_ref().map(|_| Instant::now() + LAST_WORD);
                }
                Frame::Status(_) | Frame::Other => {}
            },
            Some(Ok(Message::Close(Some(close)))) if !close.reason.is_empty() => {
                break close.reason.to_string();
            }
            Some(Ok(Message::Close(_))) | None => {
                break "the server closed it before the exit code came".to_owned();
            }
            Some(Ok(_)) => {} // Pings are answered by the WebSocket itself; nothing comes as text.
            Some(Err(error)) => break error.to_string(),
        }
    };
    // With an exit code, the end of the connection does not matter.
    end.unwrap_or(End::Lost(lost))
}

async fn passed(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

async fn deliver(queue: &mpsc::Sender<Bytes>, chunk: Bytes) {
    // The server sends an empty message when it opens a channel.
    if !chunk.is_empty() {
        // Sending fails if the reader was dropped: the chunk is not needed then.
        let _ = queue.send(chunk).await;
    }
}

async fn write(
    mut sink: SplitSink<Socket, Message>,
    mut queue: mpsc::Receiver<Bytes>,
    close_stdin: bool,
) -> Result<(), WebSocketError> {
    while let Some(mut data) = queue.recv().await {
        if data.len() < MAX_INPUT_FRAME {
            // A writer of small pieces has the next one ready at once: each message costs two hops in the cluster.
            yield_now().await;
            data = gather(data, &mut queue);
        }
        for part in data.chunks(MAX_INPUT_FRAME) {
            sink.send(Message::Binary(frame::stdin(part))).await?;
        }
    }
    if close_stdin {
        sink.send(Message::Binary(frame::CLOSE_STDIN)).await?;
    }
    Ok(())
}

/// Joins `first` and what waits behind it, up to about a full message.
fn gather(first: Bytes, queue: &mut mpsc::Receiver<Bytes>) -> Bytes {
    let Ok(second) = queue.try_recv() else {
        return first;
    };
    let mut all = BytesMut::from(&first[..]);
    all.extend_from_slice(&second);
    while all.len() < MAX_INPUT_FRAME
        && let Ok(next) = queue.try_recv()
    {
        all.extend_from_slice(&next);
    }
    all.freeze()
}

/// Returns why the writer failed. Never returns if it did not.
async fn failure(writer: &mut Writer) -> String {
    let reason = match writer.await {
        Ok(Ok(())) => pending().await,
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    sleep(LAST_WORD).await;
    reason
}

#[cfg(test)]
mod tests;
