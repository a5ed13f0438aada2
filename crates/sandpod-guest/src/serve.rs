//! The guest as the first process of a container.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd, FromRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{DumpableBehavior, Signal};
use sandpod_protocol::v1::{self, command::What};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;

use crate::accepting::accept_each;
use crate::confine;
use crate::guest::own_env;
use crate::orders::Orders;
use crate::policy::Restriction;
use crate::process::{Launch, NEVER_STARTED, Running, Streams, no_streams, nothing_to_read, tree};
use crate::{Doors, Guest, Options, open_files, pipe, reaper};

/// The streams that are served at once.
pub(crate) const MAX_STREAMS: usize = 256;
/// How long a process has to hand its stream over.
const HANDOVER: Duration = Duration::from_secs(5);
/// How long commands have to end when the guest is told to.
const FAREWELL: Duration = Duration::from_millis(500);

/// Serves whom the container runtime starts in this sandbox, beside `command` if there is one, until
/// the guest's time is up or it is told to end. Opens `doors` to the network besides. Call it while there
/// is one thread.
///
/// Here and not in the program: whoever awaits a future has all of its code once more.
pub fn run(options: Options, command: &[OsString], doors: Doors) -> io::Result<()> {
    // One that was placed into a running sandbox can be ended and traced from there anyway.
    if rustix::process::getpid().is_init() {
        confine::enter(options.without)?;
    }
    let orders = Orders::take()?;
    open_files::raise();
    let runtime = runtime()?;
    let ends_container = options.ends_container;
    let end = runtime.block_on(async { serve(Guest::new(options)?, command, doors, orders).await });
    // Work that still blocks a thread ends with the process.
    runtime.shutdown_background();
    if end? == End::Expired && ends_container && !rustix::process::getpid().is_init() {
        // One that does not listen to this signal lives on: nobody in here can make it end.
        let _ = rustix::process::kill_process(rustix::process::Pid::INIT, Signal::TERM);
    }
    Ok(())
}

/// One thread for all that does not wait: two would wake each other for work that takes less than that. What waits, for a
/// disk or for a search, has threads of its own.
pub(crate) fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()
}

/// Why the guest ends.
#[derive(PartialEq)]
enum End {
    Expired,
    Told,
}

async fn serve(guest: Guest, command: &[OsString], doors: Doors, orders: Orders) -> io::Result<End> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // The first process is that anyway; one that was placed into a running sandbox becomes it here.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let listener = listen()?;
    doors.open(&guest).await?.log();
    if !command.is_empty() {
        let words = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        tokio::spawn(run_beside(guest.clone(), words));
    }
    let end = tokio::select! {
        never = accept(listener, &guest) => match never {},
        error = reaper::run(guest.children().clone()) => return error.map(|()| End::Told),
        () = guest.expired() => End::Expired,
        told = orders.await_end() => told.map(|()| End::Told)?,
    };
    say_goodbye().await;
    Ok(end)
}

fn listen() -> io::Result<UnixListener> {
    let listener = std::os::unix::net::UnixListener::bind_addr(&pipe::address()?).map_err(|error| {
        io::Error::new(error.kind(), format!("the guest cannot listen ({error}): does another one run here?"))
    })?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

async fn accept(listener: UnixListener, guest: &Guest) -> std::convert::Infallible {
    let accept = |context: &mut Context<'_>| listener.poll_accept(context).map_ok(|(stream, _)| stream);
    let serve = |stream| {
        let guest = guest.clone();
        // A stream that breaks is its client's matter: it opens another one.
        is_admitted(&stream).then_some(async move { drop(answer(&guest, stream).await) })
    };
    accept_each(accept, MAX_STREAMS, serve).await
}

/// Answers on what the peer hands over, until that ends or the peer does.
async fn answer(guest: &Guest, mut peer: UnixStream) -> io::Result<()> {
    let handed_over = peer.async_io(Interest::READABLE, || pipe::take_over(&peer));
    let (input, output) = tokio::time::timeout(HANDOVER, handed_over).await??;
    rustix::io::ioctl_fionbio(&input, true)?;
    rustix::io::ioctl_fionbio(&output, true)?;
    // Sockets and terminals are read and written as pipes are.
    let input = Receiver::from_owned_fd_unchecked(input)?;
    let output = Sender::from_owned_fd_unchecked(output)?;
    peer.write_all(pipe::ADMITTED).await?;
    tokio::select! {
        served = guest.serve_stream(tokio::io::join(input, output)) => served,
        // It says nothing more, so what comes is its end.
        gone = peer.read_u8() => gone.map(drop),
    }
}

/// Whether the peer was placed into this container from outside: its parent is not in here. What runs
/// in here, with the same rights as the guest, has a parent in here and cannot get rid of that.
fn is_admitted(stream: &UnixStream) -> bool {
    // Without one it could not be told whether the peer has ended and its number is another's now.
    let Ok(file) = peer_file(stream) else { return false };
    let peer = stream.peer_cred().ok().and_then(|peer| peer.pid()).filter(|pid| *pid > 0);
    let me = rustix::process::getpid().as_raw_nonzero().get();
    let is_from_outside = peer.filter(|pid| *pid != me).and_then(parent) == Some(0);
    // While the peer lives nobody else has its number, so it was the peer whose parent was looked at.
    is_from_outside && file.is_none_or(|file| lives(&file))
}

/// The peer's process as a file; None on kernels that don't know of that, which are those before 6.5.
#[expect(unsafe_code, reason = "no safe interface has this socket option")]
fn peer_file(stream: &impl AsRawFd) -> io::Result<Option<OwnedFd>> {
    const INTEGER: libc::socklen_t = 4;
    let (mut file, mut size) = (-1_i32, INTEGER);
    // SAFETY: the kernel writes an integer, which is a new descriptor that nobody else has.
    unsafe {
        let socket = stream.as_raw_fd();
        let got = libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut file).cast(),
            &raw mut size,
        );
        if got == 0 && file >= 0 {
            return Ok(Some(OwnedFd::from_raw_fd(file)));
        }
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(None),
        error => Err(error),
    }
}

fn lives(process: &OwnedFd) -> bool {
    let now = Some(&Timespec { tv_sec: 0, tv_nsec: 0 });
    poll(&mut [PollFd::new(process, PollFlags::IN)], now) == Ok(0)
}

fn parent(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Runs the user's own command; the sandbox lives on when it ends.
async fn run_beside(guest: Guest, words: Vec<String>) {
    let command = v1::Command { what: Some(What::Argv(v1::Argv { words })), ..v1::Command::default() };
    let ended =
        match Launch::new(command, own_env(), Path::new("."), Ok(Restriction::default()), &Arc::default()) {
            Ok(launch) => match start(&launch, &guest) {
                Ok(mut running) => running.wait().await.map_err(|why| launch.explain(&why)),
                Err(why) => Err(why),
            },
            Err(failure) => Err(failure.to_string()),
        };
    guest.note_command_exit(ended.unwrap_or_else(|why| {
        // The container's log is all there is to tell; without one the sandbox still works.
        let _ = writeln!(io::stderr(), "sandpod-guest: {why}");
        NEVER_STARTED
    }));
}

/// Starts a command whose output is the guest's own.
fn start(launch: &Launch, guest: &Guest) -> Result<Running, String> {
    let streams = || {
        let stdout = Arc::new(io::stdout().as_fd().try_clone_to_owned()?);
        let stderr = Arc::new(io::stderr().as_fd().try_clone_to_owned()?);
        io::Result::Ok(Streams { stdin: nothing_to_read()?, stdout, stderr, terminal: false })
    };
    launch.start(streams().map_err(|error| no_streams(&error))?, guest.children())
}

/// Tells all that run here to end, and gives them a moment to.
async fn say_goodbye() {
    let me = rustix::process::getpid();
    tree::signal_below(me, Signal::TERM);
    let ended = async {
        while !tree::descendants(me).is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let _ = tokio::time::timeout(FAREWELL, ended).await;
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener as StdListener;
    use std::process::{Command, Stdio};

    use super::*;

    /// A process of its own that connects to `socket`, and the guest's end of it.
    fn connected(socket: &Path) -> (std::process::Child, UnixStream) {
        let listener = StdListener::bind(socket).unwrap();
        let script =
            "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\nsys.stdin.read()";
        let child = Command::new("python3").args(["-c", script]).arg(socket).stdin(Stdio::piped()).spawn();
        let (stream, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        (child.unwrap(), UnixStream::from_std(stream).unwrap())
    }

    #[tokio::test]
    async fn a_peer_that_has_ended_is_known_although_its_number_may_be_anothers() {
        let dir = tempfile::tempdir().unwrap();
        let (mut child, stream) = connected(&dir.path().join("socket"));
        let Some(file) = peer_file(&stream).unwrap() else {
            return; // A kernel before 6.5.
        };
        assert!(lives(&file));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!lives(&file));
    }

    #[test]
    fn only_a_kernel_that_knows_no_files_of_peers_admits_without_one() {
        use rustix::net::{AddressFamily, SocketType, socket};
        // No peer, and so no file: another reason than the kernel's age.
        let alone = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        let (connected, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let is_known = peer_file(&connected).unwrap().is_some();
        assert_eq!(peer_file(&alone).is_err(), is_known);
    }
}
