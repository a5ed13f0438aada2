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

use rustix::process::DumpableBehavior;

/// What is read at once, so that what is ready leaves in one write.
const BUFFER_BYTES: usize = 64 << 10;

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
    let (end, ended) = mpsc::channel();
    let (to_guest, input_ended) = (socket.try_clone()?, end.clone());
    // Who ends second ends with the process, so nobody is left to tell.
    thread::spawn(move || drop(input_ended.send(copy(input, to_guest).map(drop))));
    thread::spawn(move || drop(end.send(copy(socket, output).and_then(admitted))));
    ended.recv().unwrap_or(Ok(()))
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
