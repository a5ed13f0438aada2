//! Connects a process that the container runtime started in a sandbox to the guest there. The process hands its
//! standard input and output over, and the guest reads and writes them itself, so no bytes are copied in between.
//!
//! It needs no async runtime, because the boot stub uses it too.

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

/// Attempts to connect to the guest and the interval between them: 5 s in all.
const CONNECT_ATTEMPTS: usize = 500;
const CONNECT_INTERVAL: Duration = Duration::from_millis(10);
/// The guest's answer to a process that it admits.
pub(crate) const ADMITTED: &[u8] = b"+";

/// Returns the address of a sandbox's guest: an abstract Unix socket, which needs no writable directory. Abstract names belong
/// to the network namespace, which the containers of a Pod share. Mount namespaces are not shared, so the name contains its number.
pub fn address() -> io::Result<SocketAddr> {
    // gVisor does not show this number. There, the containers of a Pod share one name, and only one of them can have a guest.
    let view = fs::read_link("/proc/self/ns/mnt").unwrap_or_default();
    SocketAddr::from_abstract_name(format!("sandpod-guest {}", view.display()))
}

/// Connects standard input and output to the guest, until either side ends.
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

/// Connects with retries: a container runs for a moment before its guest listens, and a new exec would take longer.
fn connect(address: &SocketAddr) -> io::Result<UnixStream> {
    for _ in 0..CONNECT_ATTEMPTS {
        if let Ok(socket) = UnixStream::connect_addr(address) {
            return Ok(socket);
        }
        thread::sleep(CONNECT_INTERVAL);
    }
    UnixStream::connect_addr(address)
}

/// Rejects files and `/dev/null`, which cannot be polled for new data.
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
/// the guest detects the closed socket and ends the stream.
fn join_by(mut socket: &UnixStream, input: BorrowedFd<'_>, output: BorrowedFd<'_>) -> io::Result<()> {
    let mut answer = [0; ADMITTED.len()];
    let handed_over = hand_over(socket, [input, output]).and_then(|()| socket.read_exact(&mut answer));
    if handed_over.is_err() || answer != ADMITTED {
        let message = "the guest refused: it admits only processes that the container runtime started";
        return Err(io::Error::new(ErrorKind::PermissionDenied, message));
    }
    // A killed guest leaves unread data, so this read may fail. Either way the stream has ended.
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

/// Receives the input and the output that a process hands over.
pub(crate) fn take_over(socket: impl AsFd) -> io::Result<(OwnedFd, OwnedFd)> {
    let files = descriptors::receive(socket, &mut [0], RecvFlags::empty())?;
    files.map(|[input, output]| (input, output)).ok_or_else(|| ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::thread;

    use super::*;

    /// Joins a process whose input never ends and whose output is never read, as after a crash of the runtime.
    fn join_stalled(socket: UnixStream) -> thread::JoinHandle<io::Result<()>> {
        let (input, open) = rustix::pipe::pipe().unwrap();
        let (unread, output) = rustix::pipe::pipe().unwrap();
        thread::spawn(move || {
            let _held = (open, unread);
            join_by(&socket, input.as_fd(), output.as_fd())
        })
    }

    #[test]
    fn the_peer_hands_over_the_stream_itself() {
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
    fn pipe_ends_with_the_guest_even_if_its_output_is_never_read() {
        let (mut guest, socket) = UnixStream::pair().unwrap();
        let joined = join_stalled(socket);
        let stream = take_over(&guest).unwrap();
        guest.write_all(ADMITTED).unwrap();
        drop((guest, stream));
        assert!(joined.join().unwrap().is_ok());
    }

    #[test]
    fn closing_without_an_answer_is_a_refusal() {
        let (guest, socket) = UnixStream::pair().unwrap();
        drop(guest);
        assert_eq!(join_stalled(socket).join().unwrap().unwrap_err().kind(), ErrorKind::PermissionDenied);
        let (guest, socket) = UnixStream::pair().unwrap();
        let joined = join_stalled(socket);
        take_over(&guest).unwrap();
        drop(guest);
        assert!(joined.join().unwrap().unwrap_err().to_string().contains("the guest refused"));
    }
}
