//! Runs the guest as the first process of a container.

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

use crate::accept::accept_each;
use crate::confine;
use crate::guest::own_env;
use crate::policy::Restriction;
use crate::process::{Launch, NEVER_STARTED, Running, Streams, empty_input, no_streams, tree};
use crate::signals::ShutdownSignal;
use crate::{Guest, ListenOptions, Options, open_file_limit, pipe, reaper};

/// Streams served at the same time.
pub(crate) const MAX_STREAMS: usize = 256;
/// Time for a process to hand over its stream.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for commands to end when the guest shuts down.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(500);

/// Serves processes that the container runtime starts in this sandbox, and runs `command` if it is not empty, until
/// the guest expires or receives a shutdown signal. Also listens on the addresses in `listen`. Call it while the process
/// has one thread.
///
/// It is part of the library because a future's code is duplicated in each crate that awaits it.
pub fn run(options: Options, command: &[OsString], listen: ListenOptions) -> io::Result<()> {
    // A guest that was placed into a running container can be killed and traced from there anyway.
    if rustix::process::getpid().is_init() {
        confine::enter(options.disabled_kernel_features)?;
    }
    let shutdown = ShutdownSignal::take()?;
    open_file_limit::raise();
    let runtime = runtime()?;
    let ends_container = options.ends_container;
    let end = runtime.block_on(async { serve(Guest::new(options)?, command, listen, shutdown).await });
    // Tasks that still block a thread end with the process.
    runtime.shutdown_background();
    if end? == End::Expired && ends_container && !rustix::process::getpid().is_init() {
        // A process that ignores this signal lives on: nothing inside the container can end it.
        let _ = rustix::process::kill_process(rustix::process::Pid::INIT, Signal::TERM);
    }
    Ok(())
}

/// Makes a runtime with one worker thread: two would wake each other for tasks that take less time than that. Blocking
/// work, such as disk access and searches, runs on threads of its own.
pub(crate) fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()
}

/// Why the guest ends.
#[derive(PartialEq)]
enum End {
    Expired,
    Signalled,
}

async fn serve(
    guest: Guest,
    command: &[OsString],
    listen: ListenOptions,
    shutdown: ShutdownSignal,
) -> io::Result<End> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // PID 1 is a reaper anyway; a guest that was placed into a running container becomes one here.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let listener = bind()?;
    listen.open(&guest).await?.log();
    if !command.is_empty() {
        let words = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        tokio::spawn(run_user_command(guest.clone(), words));
    }
    let end = tokio::select! {
        never = accept(listener, &guest) => match never {},
        error = reaper::run(guest.children().clone()) => return error.map(|()| End::Signalled),
        () = guest.expired() => End::Expired,
        signal = shutdown.received() => signal.map(|()| End::Signalled)?,
    };
    terminate_processes().await;
    Ok(end)
}

fn bind() -> io::Result<UnixListener> {
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
        // A broken stream needs no handling here: its client opens another one.
        is_admitted(&stream).then_some(async move { drop(answer(&guest, stream).await) })
    };
    accept_each(accept, MAX_STREAMS, serve).await
}

/// Serves the stream that the peer hands over, until the stream or the peer ends.
async fn answer(guest: &Guest, mut peer: UnixStream) -> io::Result<()> {
    let handed_over = peer.async_io(Interest::READABLE, || pipe::take_over(&peer));
    let (input, output) = tokio::time::timeout(HANDOVER_TIMEOUT, handed_over).await??;
    rustix::io::ioctl_fionbio(&input, true)?;
    rustix::io::ioctl_fionbio(&output, true)?;
    // Sockets and terminals are read and written like pipes.
    let input = Receiver::from_owned_fd_unchecked(input)?;
    let output = Sender::from_owned_fd_unchecked(output)?;
    peer.write_all(pipe::ADMITTED).await?;
    tokio::select! {
        served = guest.serve_stream(tokio::io::join(input, output)) => served,
        // The peer sends nothing more, so a readable socket means that the peer has ended.
        gone = peer.read_u8() => gone.map(drop),
    }
}

/// Returns whether the peer was started from outside this container: then its parent is not in here. A process that was
/// started inside, with the same rights as the guest, has a parent in here and cannot change that.
fn is_admitted(stream: &UnixStream) -> bool {
    // Without the pidfd a reused process number could not be detected.
    let Ok(file) = peer_file(stream) else { return false };
    let peer = stream.peer_cred().ok().and_then(|peer| peer.pid()).filter(|pid| *pid > 0);
    let me = rustix::process::getpid().as_raw_nonzero().get();
    let is_from_outside = peer.filter(|pid| *pid != me).and_then(parent) == Some(0);
    // While the peer lives its number is not reused, so the parent that was read is the peer's.
    is_from_outside && file.is_none_or(|file| lives(&file))
}

/// Returns a pidfd of the peer, or `None` on kernels before 6.5, which have no such socket option.
#[expect(unsafe_code, reason = "no safe interface has this socket option")]
fn peer_file(stream: &impl AsRawFd) -> io::Result<Option<OwnedFd>> {
    const INTEGER: libc::socklen_t = 4;
    let (mut file, mut size) = (-1_i32, INTEGER);
    // SAFETY: the kernel writes an integer, which is a new descriptor that has no other owner.
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

/// Runs the user's own command. The guest keeps running when it ends.
async fn run_user_command(guest: Guest, words: Vec<String>) {
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
        // The container's log is the only place for this message; the sandbox works without it.
        let _ = writeln!(io::stderr(), "sandpod-guest: {why}");
        NEVER_STARTED
    }));
}

/// Starts a command whose output is the guest's own.
fn start(launch: &Launch, guest: &Guest) -> Result<Running, String> {
    let streams = || {
        let stdout = Arc::new(io::stdout().as_fd().try_clone_to_owned()?);
        let stderr = Arc::new(io::stderr().as_fd().try_clone_to_owned()?);
        io::Result::Ok(Streams { stdin: empty_input()?, stdout, stderr, terminal: false })
    };
    launch.start(streams().map_err(|error| no_streams(&error))?, guest.children())
}

/// Sends SIGTERM to all processes in this sandbox and waits up to `SHUTDOWN_GRACE` for them to end.
async fn terminate_processes() {
    let me = rustix::process::getpid();
    tree::signal_below(me, Signal::TERM);
    let ended = async {
        while !tree::descendants(me).is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let _ = tokio::time::timeout(SHUTDOWN_GRACE, ended).await;
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener as StdListener;
    use std::process::{Command, Stdio};

    use super::*;

    /// Starts a process that connects to `socket`, and returns it with the guest's end of the connection.
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
    async fn a_pidfd_shows_that_a_peer_has_ended() {
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
    fn a_missing_pidfd_is_accepted_only_on_old_kernels() {
        use rustix::net::{AddressFamily, SocketType, socket};
        // A socket without a peer: the option fails for another reason than the kernel's age.
        let alone = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        let (connected, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let is_known = peer_file(&connected).unwrap().is_some();
        assert_eq!(peer_file(&alone).is_err(), is_known);
    }
}
