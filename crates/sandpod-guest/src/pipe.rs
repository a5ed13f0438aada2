//! Joins a process that the container runtime started in a sandbox with the guest there.
//!
//! Needs no async runtime, so that the stub that starts a guest can do it too.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::DumpableBehavior;

/// What is read at once, so that what is ready leaves in one write.
const BUFFER_BYTES: usize = 64 << 10;
/// How long what the guest said last may take to leave.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Where the guest of a sandbox listens: a name of the kernel's, so that it needs no writable place.
pub fn address() -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name("sandpod-guest")
}

/// Joins the standard input and output with the guest, until either side ends.
pub fn join() -> io::Result<()> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let socket = UnixStream::connect_addr(&address()?).map_err(|error| {
        io::Error::new(error.kind(), format!("no guest listens in this sandbox ({error}): is it running?"))
    })?;
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    join_by(socket, input, output)
}

fn join_by(socket: UnixStream, input: File, output: File) -> io::Result<()> {
    let (end, ended) = mpsc::channel();
    let (to_guest, input_ended) = (socket.try_clone()?, end.clone());
    let (guest, guest_left) = (socket.try_clone()?, end.clone());
    // Who ends second ends with the process, so nobody is left to tell.
    thread::spawn(move || drop(input_ended.send(copy(input, to_guest).map(drop))));
    thread::spawn(move || drop(end.send(copy(socket, output).and_then(admitted))));
    // A runtime that crashed leaves an output that nobody reads and an input that never ends.
    thread::spawn(move || {
        wait_until_left(&guest);
        thread::sleep(LAST_WORDS);
        drop(guest_left.send(Ok(())));
    });
    ended.recv().unwrap_or(Ok(()))
}

/// Waits until the guest has closed its end, whatever is still to be read.
fn wait_until_left(guest: &UnixStream) {
    // No flag: an end that was closed is told anyway.
    while poll(&mut [PollFd::new(guest, PollFlags::empty())], None) == Err(rustix::io::Errno::INTR) {}
}

/// The guest speaks first, so one that said nothing has refused.
fn admitted(copied: u64) -> io::Result<()> {
    if copied > 0 {
        return Ok(());
    }
    let message = "the guest refused: it admits only processes that the container runtime started";
    Err(io::Error::new(ErrorKind::PermissionDenied, message))
}

fn copy(mut from: impl Read, mut to: impl Write) -> io::Result<u64> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut copied = 0;
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(copied),
            Ok(read) => {
                to.write_all(&buffer[..read])?;
                copied += read as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_with_the_guest_although_nobody_reads_its_output_or_ends_its_input() {
        let (guest, socket) = UnixStream::pair().unwrap();
        let (input, _open) = rustix::pipe::pipe().unwrap();
        let (_unread, output) = rustix::pipe::pipe().unwrap();
        let (done, is_done) = mpsc::channel();
        thread::spawn(move || done.send(join_by(socket, input.into(), output.into()).is_ok()));
        // More than the output holds.
        guest.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while sent < 4 * BUFFER_BYTES {
            match (&guest).write(&[0; 1024]) {
                Ok(count) => sent += count,
                Err(_) => break,
            }
        }
        drop(guest);
        assert_eq!(is_done.recv_timeout(10 * LAST_WORDS), Ok(true));
    }
}
