//! A sandbox on this machine: the guest in namespaces of its own.
//!
//! The program starts twice. Outside it makes the namespaces and starts itself again as their
//! PID 1; there it takes its setup from the control socket that is its standard input, builds a
//! root of its own from the machine's system directories (read-only) and writable places, drops all
//! privileges and serves whoever connects. When it ends, the kernel ends everything else with it.
//!
//! It keeps careless code from the machine's files, processes and network. It is no wall against a
//! kernel exploit.

mod loopback;
mod root;
mod setup;

use std::convert::Infallible;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::task::Context;

use rustix::process::{Signal, getgid, getuid, set_parent_process_death_signal};
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, set_capabilities, set_no_new_privs, unshare_unsafe,
};
use tokio::io::AsyncReadExt as _;

use crate::accepting::accept_each;
use crate::orders::Orders;
use crate::serve::{MAX_STREAMS, runtime};
use crate::{Guest, Options, reaper};
use setup::Setup;

/// The user inside.
const USER: u32 = 1000;
/// Where the guest keeps its state, inside.
const STATE_DIR: &str = "/run/sandpod";
/// A file there that says that the guest ended because its time was up: it is not to be started again.
const EXPIRED: &str = "expired";

/// Runs the guest in namespaces of its own, with what comes through the Unix socket that is our
/// standard input.
///
/// The caller's program calls this first thing, while it has one thread.
#[must_use]
pub fn run() -> ExitCode {
    let stage = if std::process::id() == 1 { init } else { enter };
    stage().unwrap_or_else(|error| {
        // Whoever makes the sandbox shows this as the reason why it did not start.
        #[expect(clippy::print_stderr, reason = "nobody is served yet")]
        {
            eprintln!("{error}");
        }
        ExitCode::from(125)
    })
}

/// Outside: makes the namespaces and waits for what runs in them.
fn enter() -> io::Result<ExitCode> {
    // Keys of the terminal are not for the sandbox.
    rustix::process::setsid()?;
    let setup = Setup::peek(io::stdin().as_fd())?;
    // A directory that was opened outside can't be mounted inside, but who stands in it takes it along.
    rustix::process::fchdir(&setup.places)?;
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    let mut namespaces = UnshareFlags::NEWUSER
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWCGROUP;
    if !setup.network {
        namespaces |= UnshareFlags::NEWNET;
    }
    new_namespaces(namespaces).map_err(|error| {
        io::Error::other(format!(
            "this machine does not let you make user namespaces ({error}): set the sysctls user.max_user_namespaces \
             above 0 and, where they exist, kernel.unprivileged_userns_clone=1 and \
             kernel.apparmor_restrict_unprivileged_userns=0"
        ))
    })?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{USER} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{USER} {group} 1"))?;
    keep_for_init(CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN)?;
    let mut init = Command::new("/proc/self/exe");
    let mut init = init.args(std::env::args_os().skip(1)).stdout(Stdio::null()).spawn()?;
    // Whoever wants the sandbox to end kills that process. The lock is ours, too: all that ran in there is
    // gone only when the kernel tells us so.
    let lock = File::from(setup.lock);
    lock.write_all_at(init.id().to_string().as_bytes(), 0)?;
    let status = init.wait()?;
    drop(lock);
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}

#[expect(unsafe_code, reason = "rustix marks all of unshare unsafe for the sake of CLONE_FILES")]
fn new_namespaces(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: only CLONE_FILES can leave others with closed descriptors, and it is not among the flags.
    unsafe { unshare_unsafe(flags) }
}

/// Lets capabilities survive the start of the program, which is not root in its namespace.
fn keep_for_init(kept: CapabilitySet) -> rustix::io::Result<()> {
    let sets = capabilities(None)?;
    set_capabilities(None, CapabilitySets { inheritable: kept, ..sets })?;
    kept.iter().try_for_each(|capability| configure_capability_in_ambient_set(capability, true))
}

/// Inside, as PID 1: builds the root, drops privileges and serves.
fn init() -> io::Result<ExitCode> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let setup = Setup::receive(control.as_fd())?;
    if !setup.network {
        loopback::bring_up()?;
    }
    rustix::system::sethostname(b"sandbox")?;
    root::build(setup.network)?;
    drop_privileges()?;
    let orders = Orders::take()?;
    let runtime = runtime()?;
    let result = runtime.block_on(serve(setup, control, orders));
    // Work that still blocks a thread ends with the process.
    runtime.shutdown_background();
    result.map(|()| ExitCode::SUCCESS)
}

fn drop_privileges() -> rustix::io::Result<()> {
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    set_no_new_privs(true)
}

/// Serves whoever connects until the guest's time is up, it is told to end, or its owner is gone.
async fn serve(setup: Setup, control: UnixStream, orders: Orders) -> io::Result<()> {
    let Setup { listener, owned, lock: _locked, .. } = setup;
    let mut options = Options::new(STATE_DIR);
    let env = [("HOME", "/home/sandbox"), ("USER", "sandbox"), ("LANG", "C.UTF-8")];
    options.env.extend(env.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let guest = Guest::new(options)?;
    tokio::select! {
        never = accept(listener, &guest) => match never? {},
        result = reaper::run(guest.children().clone()) => result,
        () = guest.expired() => fs::write(Path::new(STATE_DIR).join(EXPIRED), ""),
        told = orders.await_end() => told,
        result = owner_left(control), if owned => result,
    }
}

async fn accept(listener: OwnedFd, guest: &Guest) -> io::Result<Infallible> {
    let listener = UnixListener::from(listener);
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let accept = |context: &mut Context<'_>| listener.poll_accept(context).map_ok(|(stream, _)| stream);
    let serve = |stream| {
        let guest = guest.clone();
        // A stream that breaks is its client's matter: it opens another one.
        Some(async move { drop(guest.serve_stream(stream).await) })
    };
    Ok(accept_each(accept, MAX_STREAMS, serve).await)
}

/// Resolves when the maker of the sandbox has closed its end: nothing else comes from there.
async fn owner_left(control: UnixStream) -> io::Result<()> {
    control.set_nonblocking(true)?;
    let mut control = tokio::net::UnixStream::from_std(control)?;
    while control.read(&mut [0]).await.unwrap_or(0) > 0 {}
    Ok(())
}
