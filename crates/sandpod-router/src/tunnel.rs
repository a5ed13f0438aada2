//! Connections that changed their protocol, for example to WebSocket.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::select_all;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

/// The limits of a tunnel.
#[derive(Clone, Copy, Debug)]
pub struct TunnelLimits {
    /// The longest time without a byte.
    pub idle: Duration,
    /// The longest time that it stays open.
    pub lifetime: Duration,
}

impl Default for TunnelLimits {
    /// The limits of agent-sandbox's Python router.
    fn default() -> Self {
        Self { idle: Duration::from_secs(3600), lifetime: Duration::from_secs(24 * 3600) }
    }
}

/// Copies both ways until one side closes, a limit is reached, or one of `ends` is cancelled.
pub(crate) async fn run(
    caller: OnUpgrade,
    sandbox: OnUpgrade,
    limits: TunnelLimits,
    ends: &[CancellationToken],
) {
    let (Ok(caller), Ok(sandbox)) = tokio::join!(caller, sandbox) else { return };
    let (last, activity) = watch::channel(Instant::now());
    let mut caller = Observed { stream: TokioIo::new(caller), last };
    let mut sandbox = TokioIo::new(sandbox);
    tokio::select! {
        // An end with an error is the end of a connection, too.
        _ = copy_bidirectional(&mut caller, &mut sandbox) => {}
        () = idle(activity, limits.idle) => {}
        () = sleep(limits.lifetime) => {}
        _ = select_all(ends.iter().map(|end| Box::pin(end.cancelled()))) => {}
    }
}

async fn idle(activity: watch::Receiver<Instant>, limit: Duration) {
    loop {
        let end = *activity.borrow() + limit;
        if end <= Instant::now() {
            return;
        }
        sleep_until(end).await;
    }
}

/// The caller's side. All bytes of both directions pass it.
struct Observed<S> {
    stream: S,
    last: watch::Sender<Instant>,
}

impl<S> Observed<S> {
    fn note(&self) {
        self.last.send_replace(Instant::now());
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Observed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.note();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Observed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if written.is_ready() {
            self.note();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
