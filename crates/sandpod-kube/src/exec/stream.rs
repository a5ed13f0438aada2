//! A command's input and output as one byte stream.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures::FutureExt;
use futures::future::BoxFuture;
use kube::Client;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::PollSender;

use super::{End, Ending, Exec, MAX_INPUT_FRAME, Output, PodRef, Stdin, open_in};
use crate::Result;

/// How much of a command's standard error is kept for the error message.
const MAX_STDERR: usize = 4096;

/// Starts `command` in the container `container` of `pod` and joins its stdin and stdout.
///
/// ```no_run
/// # async fn example(client: &kube::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use sandpod_kube::exec::{self, PodRef};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// let mut stream = exec::stream(client, &PodRef::new("agents", "box"), "sandbox", ["cat"]).await?;
/// stream.write_all(b"hello").await?;
/// let mut echo = [0; 5];
/// stream.read_exact(&mut echo).await?;
/// assert_eq!(&echo, b"hello");
/// # Ok(())
/// # }
/// ```
pub async fn stream<I>(client: &Client, pod: &PodRef, container: &str, command: I) -> Result<ExecStream>
where
    I: IntoIterator,
    I::Item: Into<String>,
{
    let Exec { stdin, stdout, stderr, .. } =
        open_in(client, pod, Some(container), command, Stdin::Piped).await?;
    let mut ending = stdout.ending.clone();
    Ok(ExecStream {
        input: stdin.map(|stdin| PollSender::new(stdin.queue)),
        stdout,
        stderr,
        unread: Bytes::new(),
        errors: Vec::new(),
        end: async move { ending.wait().await }.boxed(),
        ended: None,
    })
}

/// A command's stdin and stdout as one stream, opened by [`stream`].
///
/// It ends when the command exits with code 0; any other end is an error with the reason and the command's standard error.
/// Shutting it down ends the command's input where the cluster supports it (Kubernetes 1.30).
pub struct ExecStream {
    input: Option<PollSender<Bytes>>,
    stdout: Output,
    stderr: Output,
    unread: Bytes,
    errors: Vec<u8>,
    end: BoxFuture<'static, End>,
    ended: Option<End>,
}

impl ExecStream {
    /// Keeps the beginning of standard error. It must be read: otherwise it blocks all that comes after it.
    fn collect_errors(&mut self, context: &mut Context<'_>) {
        while let Poll::Ready(Some(chunk)) = self.stderr.queue.poll_recv(context) {
            let room = chunk.len().min(MAX_STDERR - self.errors.len());
            self.errors.extend_from_slice(&chunk[..room]);
        }
    }

    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let end = match self.ended.take() {
            Some(end) => end,
            None => ready!(self.end.poll_unpin(context)),
        };
        self.collect_errors(context);
        Poll::Ready(self.ended.insert(end).as_result(&self.stdout.ending, &self.errors))
    }
}

impl End {
    fn as_result(&self, ending: &Ending, errors: &[u8]) -> io::Result<()> {
        let pod = &ending.pod;
        let said = match String::from_utf8_lossy(errors).trim() {
            "" => String::new(),
            said => format!(": {said}"),
        };
        match self {
            Self::Exited(0) => Ok(()),
            Self::Exited(code) => Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                format!("the command in pod {pod} ended with exit code {code}{said}"),
            )),
            Self::NotRun(message) => Err(io::Error::new(
                io::ErrorKind::ConnectionRefused,
                format!("the command in pod {pod} was not run: {message}{said}"),
            )),
            Self::Lost(reason) => Err(io::Error::new(
                io::ErrorKind::ConnectionReset,
                format!("lost the exec stream to pod {pod}: {reason}{said}"),
            )),
        }
    }
}

impl AsyncRead for ExecStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.collect_errors(context);
        if self.unread.is_empty() {
            match ready!(self.stdout.queue.poll_recv(context)) {
                Some(chunk) => self.unread = chunk,
                None => return self.poll_end(context),
            }
        }
        let taken = self.unread.len().min(buffer.remaining());
        buffer.put_slice(&self.unread[..taken]);
        self.unread.advance(taken);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ExecStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let pod = self.stdout.ending.pod.clone();
        let closed = || {
            let said = format!("the command in pod {pod} takes no more input: read on to learn why");
            io::Error::new(io::ErrorKind::BrokenPipe, said)
        };
        let Some(input) = &mut self.input else {
            return Poll::Ready(Err(closed()));
        };
        if ready!(input.poll_reserve(context)).is_err() {
            return Poll::Ready(Err(closed()));
        }
        let taken = data.len().min(MAX_INPUT_FRAME);
        let sent = input.send_item(Bytes::copy_from_slice(&data[..taken]));
        Poll::Ready(sent.map(|()| taken).map_err(|_| closed()))
    }

    /// Written data is sent at once.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input = None;
        Poll::Ready(Ok(()))
    }
}
