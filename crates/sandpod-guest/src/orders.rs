//! Orders to end. They come from outside: what runs in the sandbox may send the guest the same signal,
//! and is not heard.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;

/// What the kernel writes for one signal, and where in it is how it was sent and the sender's number.
const RECORD: usize = size_of::<libc::signalfd_siginfo>();
const CODE: std::ops::Range<usize> = 8..12;
const SENDER: std::ops::Range<usize> = 12..16;

/// SIGTERM, taken out of the kernel's hands.
#[derive(Debug)]
pub(crate) struct Orders(OwnedFd);

impl Orders {
    /// Takes the signal over. Call it while there is one thread: later ones inherit that they are not
    /// interrupted.
    #[expect(unsafe_code, reason = "signal masks and files of signals have no safe interface")]
    pub(crate) fn take() -> io::Result<Self> {
        let mut term = std::mem::MaybeUninit::uninit();
        // SAFETY: sigemptyset writes the whole set before anybody reads it; signalfd makes a new
        // descriptor that nobody else has.
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

    /// Resolves when somebody outside tells the guest to end.
    pub(crate) async fn await_end(self) -> io::Result<()> {
        // It reads as a pipe does, though it is none.
        let mut signals = Receiver::from_owned_fd_unchecked(self.0)?;
        loop {
            let mut record = [0; RECORD];
            signals.read_exact(&mut record).await?;
            // A sender outside this PID namespace has no number in here. That can be forged, but not by `kill`, and no
            // other process than the receiver itself can say that it was sent so.
            if record[SENDER] == [0; 4] && record[CODE] == libc::SI_USER.to_ne_bytes() {
                return Ok(());
            }
        }
    }
}
