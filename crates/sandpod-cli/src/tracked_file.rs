//! A file that reports how many bytes were read or written.

use std::io::{self, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};

use crate::progress::Progress;

/// A file that updates a progress line. A seek, as a retry after a lost stream does, resets the count.
pub(crate) struct TrackedFile {
    file: File,
    progress: Progress,
    bytes: u64,
    /// The cause of a failed write.
    pub(crate) write_error: Option<io::ErrorKind>,
}

impl TrackedFile {
    pub(crate) fn new(file: File, progress: Progress) -> Self {
        Self { file, progress, bytes: 0, write_error: None }
    }

    fn count(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.progress.update(self.bytes);
    }

    /// Records the cause of a failed write.
    fn failed(&mut self, cause: io::Error) -> io::Error {
        self.write_error = Some(cause.kind());
        cause
    }
}

impl AsyncRead for TrackedFile {
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

impl AsyncSeek for TrackedFile {
    fn start_seek(mut self: Pin<&mut Self>, position: SeekFrom) -> io::Result<()> {
        self.bytes = 0;
        Pin::new(&mut self.file).start_seek(position)
    }

    fn poll_complete(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        Pin::new(&mut self.file).poll_complete(context)
    }
}

impl AsyncWrite for TrackedFile {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.file).poll_write(context, data));
        let written = written.map_err(|cause| self.failed(cause))?;
        self.count(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.file).poll_flush(context);
        flushed.map_err(|cause| self.failed(cause))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.file).poll_shutdown(context);
        shut.map_err(|cause| self.failed(cause))
    }
}
