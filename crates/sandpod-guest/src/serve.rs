//! The guest as the first process of a container.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{DumpableBehavior, Signal};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use crate::orders::Orders;
use crate::process::{NEVER_STARTED, tree};
use crate::{Doors, Guest, Options, pipe, reaper};

/// The streams that are served at once.
const MAX_STREAMS: usize = 256;
/// How long commands have to end when the guest is told to.
const FAREWELL: Duration = Duration::from_millis(500);

/// Serves whom the container runtime starts in this sandbox, beside `command` if there is one, until
/// the guest's time is up or it is told to end. Opens `doors` to the network besides. Call it while there
/// is one thread.
///
/// Here and not in the program: whoever awaits a future has all of its code once more.
pub fn run(options: Options, command: &[OsString], doors: Doors) -> io::Result<()> {
    let orders = Orders::take()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(async { serve(Guest::new(options)?, command, doors, orders).await });
    // Work that still blocks a thread ends with the process.
    runtime.shutdown_background();
    result
}

async fn serve(guest: Guest, command: &[OsString], doors: Doors, orders: Orders) -> io::Result<()> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // The first process is that anyway; one that was placed into a running sandbox becomes it here.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let listener = listen()?;
    doors.open(&guest).await?.log();
    start_beside(&guest, command);
    tokio::select! {
        never = accept(listener, &guest) => match never {},
        error = reaper::run(guest.children().clone()) => return error,
        () = guest.expired() => {}
        told = orders.await_end() => told?,
    }
    say_goodbye().await;
    Ok(())
}

fn listen() -> io::Result<UnixListener> {
    let listener = std::os::unix::net::UnixListener::bind_addr(&pipe::address()?).map_err(|error| {
        io::Error::new(error.kind(), format!("the guest cannot listen ({error}): does another one run here?"))
    })?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

async fn accept(listener: UnixListener, guest: &Guest) -> std::convert::Infallible {
    let slots = Arc::new(Semaphore::new(MAX_STREAMS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of files, most likely: others end soon.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let slot = slots.clone().try_acquire_owned();
        if let (true, Ok(slot)) = (is_admitted(&stream), slot) {
            let guest = guest.clone();
            tokio::spawn(async move {
                // A stream that breaks is its client's matter: it opens another one.
                let _ = guest.serve_stream(stream).await;
                drop(slot);
            });
        }
    }
}

/// Whether the peer was placed into this container from outside: its parent is not in here. What runs
/// in here, with the same rights as the guest, has a parent in here and cannot get rid of that.
fn is_admitted(stream: &UnixStream) -> bool {
    let peer = stream.peer_cred().ok().and_then(|peer| peer.pid()).filter(|pid| *pid > 0);
    let me = rustix::process::getpid().as_raw_nonzero().get();
    peer.filter(|pid| *pid != me).and_then(parent) == Some(0)
}

fn parent(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Starts the user's own command; the sandbox lives on when it ends.
fn start_beside(guest: &Guest, command: &[OsString]) {
    let Some((program, arguments)) = command.split_first() else { return };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).process_group(0);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"SANDPOD_"))
    {
        command.env_remove(name);
    }
    match guest.children().start(command) {
        Ok(mut running) => {
            let guest = guest.clone();
            tokio::spawn(async move { guest.note_command_exit(running.wait().await) });
        }
        Err(error) => {
            guest.note_command_exit(NEVER_STARTED);
            let program = program.display();
            // The container's log is all there is to tell; without one the sandbox still works.
            let _ = writeln!(io::stderr(), "sandpod-guest: {program} was not started: {error}");
        }
    }
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
