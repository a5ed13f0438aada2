//! Joins a process that the container runtime started in a sandbox with the guest there: it hands its
//! standard input and output over, and the guest answers on them itself. Not a byte is copied between.
//!
//! Needs no async runtime, so that the stub that starts a guest can do it too.

use std::fs;
use std::io::{self, ErrorKind, IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::thread;
use std::time::Duration;

use rustix::fs::FileType;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::DumpableBehavior;

use crate::descriptors;

/// How often it is looked whether the guest listens, and after how long: 5 s in all.
const LOOKS: usize = 500;
const PAUSE: Duration = Duration::from_millis(10);
/// What the guest says to a process that it admits.
pub(crate) const ADMITTED: &[u8] = b"+";

/// Where the guest of a sandbox listens: a name of the kernel's, so that it needs no writable place. Such names belong to
/// the network, which containers of a Pod share; what they never share is the view of the files, so its number is in it.
pub fn address() -> io::Result<SocketAddr> {
    // A kernel that doesn't tell (gVisor's) gives each container's guest the same name: then one of them can be.
    let view = fs::read_link("/proc/self/ns/mnt").unwrap_or_default();
    SocketAddr::from_abstract_name(format!("sandpod-guest {}", view.display()))
}

/// Joins the standard input and output with the guest, until either side ends.
pub fn join() -> io::Result<()> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let socket = connect(&address()?).map_err(|error| {
        io::Error::new(error.kind(), format!("no guest listens in this sandbox ({error}): is it running?"))
    })?;
    let (stdin, stdout) = (io::stdin(), io::stdout());
    demand_stream("input", stdin.as_fd())?;
    demand_stream("output", stdout.as_fd())?;
    join_by(&socket, stdin.as_fd(), stdout.as_fd())
}

/// A container runs a moment before its guest listens, and to be started again by a runtime takes longer than to wait.
fn connect(address: &SocketAddr) -> io::Result<UnixStream> {
    for _ in 0..LOOKS {
        if let Ok(socket) = UnixStream::connect_addr(address) {
            return Ok(socket);
        }
        thread::sleep(PAUSE);
    }
    UnixStream::connect_addr(address)
}

/// The guest waits for what comes next, which files and `/dev/null` can't tell it.
fn demand_stream(name: &str, file: BorrowedFd<'_>) -> io::Result<()> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode);
    if matches!(kind, FileType::Fifo | FileType::Socket) || rustix::termios::isatty(file) {
        return Ok(());
    }
    let message =
        format!("the standard {name} is neither a pipe nor a socket nor a terminal: use one of these");
    Err(io::Error::new(ErrorKind::InvalidInput, message))
}

/// Waits until the guest closes its end, which it does when the stream ends. If this process ends first,
/// the guest sees its end of the socket closed and ends the stream.
fn join_by(mut socket: &UnixStream, input: BorrowedFd<'_>, output: BorrowedFd<'_>) -> io::Result<()> {
    let mut answer = [0; ADMITTED.len()];
    let handed_over = hand_over(socket, [input, output]).and_then(|()| socket.read_exact(&mut answer));
    if handed_over.is_err() || answer != ADMITTED {
        let message = "the guest refused: it admits only processes that the container runtime started";
        return Err(io::Error::new(ErrorKind::PermissionDenied, message));
    }
    // A guest that was killed has not read all: that is an end too.
    let _ = socket.read(&mut answer);
    Ok(())
}

fn hand_over(socket: &UnixStream, files: [BorrowedFd<'_>; 2]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(socket, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Takes the input and the output that a process has handed over.
pub(crate) fn take_over(socket: impl AsFd) -> io::Result<(OwnedFd, OwnedFd)> {
    let files = descriptors::receive(socket, &mut [0], RecvFlags::empty())?;
    files.map(|[input, output]| (input, output)).ok_or_else(|| ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::thread;

    use super::*;

    /// A process whose input never ends and whose output nobody reads, as a runtime that crashed leaves it.
    fn deserted(socket: UnixStream) -> thread::JoinHandle<io::Result<()>> {
        let (input, open) = rustix::pipe::pipe().unwrap();
        let (unread, output) = rustix::pipe::pipe().unwrap();
        thread::spawn(move || {
            let _held = (open, unread);
            join_by(&socket, input.as_fd(), output.as_fd())
        })
    }

    #[test]
    fn what_is_handed_over_is_the_stream_itself() {
        let (mut guest, socket) = UnixStream::pair().unwrap();
        let (input, mut to_input) = io::pipe().unwrap();
        let (mut from_output, output) = io::pipe().unwrap();
        let joined = thread::spawn(move || join_by(&socket, input.as_fd(), output.as_fd()));
        let (input, output) = take_over(&guest).unwrap();
        guest.write_all(ADMITTED).unwrap();
        to_input.write_all(b"call").unwrap();
        let mut call = [0; 4];
        std::fs::File::from(input).read_exact(&mut call).unwrap();
        std::fs::File::from(output).write_all(&call).unwrap();
        from_output.read_exact(&mut call).unwrap();
        assert_eq!(&call, b"call");
        drop(guest);
        assert!(joined.join().unwrap().is_ok());
    }

    #[test]
    fn it_ends_with_the_guest_although_nobody_reads_its_output_or_ends_its_input() {
        let (mut guest, socket) = UnixStream::pair().unwrap();
        let joined = deserted(socket);
        let stream = take_over(&guest).unwrap();
        guest.write_all(ADMITTED).unwrap();
        drop((guest, stream));
        assert!(joined.join().unwrap().is_ok());
    }

    #[test]
    fn a_guest_that_closes_without_a_word_has_refused() {
        let (guest, socket) = UnixStream::pair().unwrap();
        drop(guest);
        assert_eq!(deserted(socket).join().unwrap().unwrap_err().kind(), ErrorKind::PermissionDenied);
        let (guest, socket) = UnixStream::pair().unwrap();
        let joined = deserted(socket);
        take_over(&guest).unwrap();
        drop(guest);
        assert!(joined.join().unwrap().unwrap_err().to_string().contains("the guest refused"));
    }
}
