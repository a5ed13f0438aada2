//! A file that says how much of it was read or written.

use std::io::{self, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};

use crate::progress::Progress;

/// A file whose transfer is watched. After a lost stream it is read again, and counted again.
pub(crate) struct Counted {
    file: File,
    progress: Progress,
    bytes: u64,
    /// Why it took no more.
    pub(crate) refused: Option<io::ErrorKind>,
}

impl Counted {
    pub(crate) fn new(file: File, progress: Progress) -> Self {
        Self { file, progress, bytes: 0, refused: None }
    }

    fn count(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.progress.at(self.bytes);
    }

    /// Remembers why it took no more.
    fn refuses(&mut self, cause: io::Error) -> io::Error {
        self.refused = Some(cause.kind());
        cause
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.file).poll_read(context, buffer))?;
        self.count(buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncSeek for Counted {
    fn start_seek(mut self: Pin<&mut Self>, position: SeekFrom) -> io::Result<()> {
        self.bytes = 0;
        Pin::new(&mut self.file).start_seek(position)
    }

    fn poll_complete(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        Pin::new(&mut self.file).poll_complete(context)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.file).poll_write(context, data));
        let written = written.map_err(|cause| self.refuses(cause))?;
        self.count(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.file).poll_flush(context);
        flushed.map_err(|cause| self.refuses(cause))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.file).poll_shutdown(context);
        shut.map_err(|cause| self.refuses(cause))
    }
}
