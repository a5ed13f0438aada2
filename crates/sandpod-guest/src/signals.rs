//! Shutdown signals. Only SIGTERM from outside the sandbox counts; processes inside can send the same signal, and it
//! is ignored.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;

/// Layout of `signalfd_siginfo`: its size, and the ranges of `si_code` and of the sender's PID.
const RECORD: usize = size_of::<libc::signalfd_siginfo>();
const CODE: std::ops::Range<usize> = 8..12;
const SENDER: std::ops::Range<usize> = 12..16;

/// SIGTERM, received through a signalfd.
#[derive(Debug)]
pub(crate) struct ShutdownSignal(OwnedFd);

impl ShutdownSignal {
    /// Blocks SIGTERM and opens a signalfd for it. Call it while the process has one thread: later threads inherit
    /// the mask.
    #[expect(unsafe_code, reason = "signal masks and signalfd have no safe interface")]
    pub(crate) fn take() -> io::Result<Self> {
        let mut term = std::mem::MaybeUninit::uninit();
        // SAFETY: sigemptyset initializes the whole set before it is read; signalfd returns a new descriptor that has
        // no other owner.
        unsafe {
            libc::sigemptyset(term.as_mut_ptr());
            libc::sigaddset(term.as_mut_ptr(), libc::SIGTERM);
            libc::sigprocmask(libc::SIG_BLOCK, term.as_ptr(), std::ptr::null_mut());
            match libc::signalfd(-1, term.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => Err(io::Error::last_os_error()),
                file => Ok(Self(OwnedFd::from_raw_fd(file))),
            }
        }
    }

    /// Resolves when a process outside the sandbox has sent SIGTERM.
    pub(crate) async fn received(self) -> io::Result<()> {
        // A signalfd is read like a pipe.
        let mut signals = Receiver::from_owned_fd_unchecked(self.0)?;
        loop {
            let mut record = [0; RECORD];
            signals.read_exact(&mut record).await?;
            // A sender outside this PID namespace has PID 0 here. `kill` cannot forge that, and no process other than the
            // receiver itself can send a signal with this `si_code`.
            if record[SENDER] == [0; 4] && record[CODE] == libc::SI_USER.to_ne_bytes() {
                return Ok(());
            }
        }
    }
}
