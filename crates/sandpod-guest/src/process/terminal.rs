//! Pseudo-terminals of commands.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::io::Errno;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use sandpod_protocol::v1;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Default value of `TERM`.
pub(crate) const KIND: &str = "xterm-256color";

/// The guest's end of a terminal.
pub(crate) struct Terminal(OwnedFd);

impl Terminal {
    /// Opens a new terminal, and returns it with the command's end.
    pub(crate) fn open(size: Winsize) -> io::Result<(Self, OwnedFd)> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags)?;
        unlockpt(&ours)?;
        let theirs = ioctl_tiocgptpeer(&ours, flags)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        tcsetwinsize(&ours, size)?;
        Ok((Self(ours), theirs))
    }

    /// Converts a size for the kernel. Zeros become 80 columns and 24 rows.
    pub(crate) fn size(size: v1::Terminal) -> Winsize {
        let within = |wanted: u32, usual| match wanted {
            0 => usual,
            _ => u16::try_from(wanted).unwrap_or(u16::MAX),
        };
        Winsize {
            ws_row: within(size.rows, 24),
            ws_col: within(size.columns, 80),
            ws_xpixel: 0,
            ws_ypixel: 0,
        }
    }

    /// Changes the size. The kernel signals the foreground process group.
    pub(crate) fn resize(&self, size: v1::Terminal) -> io::Result<()> {
        Ok(tcsetwinsize(&self.0, Self::size(size))?)
    }

    /// Returns a stream that reads and writes the terminal.
    #[expect(
        unsafe_code,
        reason = "tokio cannot check that the descriptor stays open while it is registered"
    )]
    pub(crate) fn stream(&self) -> io::Result<Stream> {
        let own = self.0.try_clone()?;
        // SAFETY: the stream owns the descriptor, which stays open until the stream is dropped.
        Ok(Stream(unsafe { AsyncFd::register(own) }?))
    }
}

/// Reads and writes a terminal.
pub(crate) struct Stream(AsyncFd<OwnedFd>);

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.0.poll_read_ready(cx))?;
            let free = buffer.initialize_unfilled();
            match ready.try_io(|fd| Ok(rustix::io::read(fd.as_fd(), &mut *free)?)) {
                Ok(Ok(read)) => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                // No process has the terminal open any more.
                Ok(Err(error)) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => {
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_not_yet) => {}
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.0.poll_write_ready(cx))?;
            if let Ok(written) = ready.try_io(|fd| Ok(rustix::io::write(fd.as_fd(), data)?)) {
                return Poll::Ready(written);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
