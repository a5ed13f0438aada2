//! A sandbox on this machine: the guest in namespaces of its own.
//!
//! There are two processes of it. The one outside takes its setup from the control socket that is its standard
//! input, makes the namespaces and waits for its copy, which is their PID 1. That one builds a root of its own from
//! the machine's system directories (read-only) and writable places, drops all privileges, gives up system calls
//! that help to get out, and serves whoever connects. When it ends, the kernel ends everything else with it.
//!
//! It keeps careless code from the machine's files, processes and network. It is no wall against a
//! kernel exploit.

mod calls;
mod loopback;
mod refusal;
mod root;
mod setup;

use std::convert::Infallible;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use std::task::Context;

use landlock::{Ruleset, RulesetAttr as _, RulesetCreated, Scope};
use rustix::process::{
    DumpableBehavior, Gid, Pid, Resource, Rlimit, Signal, Uid, WaitOptions, getgid, getrlimit, getuid,
    set_dumpable_behavior, set_parent_process_death_signal, setrlimit, waitpid,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, set_capabilities, set_no_new_privs, set_thread_gid,
    set_thread_groups, set_thread_uid, unshare_unsafe,
};
use tokio::io::AsyncReadExt as _;

use crate::accept::accept_each;
use crate::serve::{MAX_STREAMS, runtime};
use crate::signals::ShutdownSignal;
use crate::state_file;
use crate::{Guest, Options, open_file_limit, reaper, syscalls};
use setup::Setup;

/// The user inside.
const USER: u32 = 1000;
/// Where the guest keeps its state, inside.
const STATE_DIR: &str = "/run/sandpod";
/// How much sooner than others what runs here is ended when memory runs out, of 1000.
const GOES_FIRST: &str = "500";
/// The most inotify watches of a sandbox; at most a quarter of what the machine allows a user.
const MAX_WATCHES: u32 = 32_768;
/// A file there that says that the guest ended because its time was up: it is not to be started again.
const EXPIRED: &str = "expired";

/// Runs the guest in namespaces of its own, with what comes through the Unix socket that is our
/// standard input.
///
/// The caller's program calls this first thing, while it has one thread.
#[must_use]
pub fn run() -> ExitCode {
    enter().unwrap_or_else(|error| {
        // Whoever makes the sandbox shows this as the reason why it did not start.
        #[expect(clippy::print_stderr, reason = "nobody is served yet")]
        {
            eprintln!("{error}");
        }
        ExitCode::from(125)
    })
}

/// Outside: makes the namespaces and waits for what runs in them, a copy of this process.
fn enter() -> io::Result<ExitCode> {
    close_what_is_not_ours()?;
    // Keys of the terminal are not for the sandbox.
    rustix::process::setsid()?;
    let setup = Setup::receive(io::stdin().as_fd())?;
    rustix::stdio::dup2_stderr(&setup.log)?;
    setup.user.map_or(Ok(()), change_user)?;
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
    new_namespaces(namespaces).and_then(|()| map_user(user, group)).map_err(refusal::explain)?;
    new_keyring()?;
    let Some(guest) = fork()? else { return init(setup) };
    // Whoever wants the sandbox to end kills that process. The lock is ours, too: all that ran in there is
    // gone only when the kernel tells us so.
    let lock = File::from(setup.lock);
    lock.write_all_at(guest.as_raw_nonzero().to_string().as_bytes(), 0)?;
    let ended = waitpid(Some(guest), WaitOptions::empty())?;
    drop(lock);
    let code = ended.and_then(|(_, status)| status.exit_status()).unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Makes the first process of the new namespaces; none in there.
#[expect(unsafe_code, reason = "a copy of the whole process has no safe interface")]
fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: this process has one thread, so its copy lacks nothing.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        child => Ok(Pid::from_raw(child)),
    }
}

/// Whoever started our maker may have left files open.
#[expect(unsafe_code, reason = "files that somebody else owns are closed")]
fn close_what_is_not_ours() -> io::Result<()> {
    // SAFETY: nothing was opened yet but the first three.
    Ok(unsafe { syscalls::close_from(3, 0) }?)
}

/// Root's guest is nobody on the machine.
fn change_user(user: u32) -> io::Result<()> {
    set_thread_groups(&[])?;
    set_thread_gid(Gid::from_raw(user))?;
    set_thread_uid(Uid::from_raw(user))?;
    // Without this our own files in /proc would be root's from here on.
    Ok(set_dumpable_behavior(DumpableBehavior::Dumpable)?)
}

/// Makes us `USER` in the new user namespace, and nobody else anyone.
fn map_user(user: u32, group: u32) -> io::Result<()> {
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{USER} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{USER} {group} 1"))
}

/// Leaves the keys of who started us: they go where processes go, whatever the namespace.
#[expect(unsafe_code, reason = "keyrings have no safe interface")]
fn new_keyring() -> io::Result<()> {
    let join = libc::c_long::from(libc::KEYCTL_JOIN_SESSION_KEYRING);
    // SAFETY: without a name it reads no memory.
    let joined = unsafe { libc::syscall(libc::SYS_keyctl, join, std::ptr::null::<libc::c_char>()) };
    match io::Error::last_os_error() {
        _ if joined >= 0 => Ok(()),
        // A kernel without keys, or a container that keeps us from them.
        error if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => Ok(()),
        error => Err(error),
    }
}

#[expect(unsafe_code, reason = "rustix marks all of unshare unsafe for the sake of CLONE_FILES")]
fn new_namespaces(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: only CLONE_FILES can leave others with closed descriptors, and it is not among the flags.
    Ok(unsafe { unshare_unsafe(flags) }?)
}

/// Inside, as PID 1: builds the root, drops privileges and serves.
fn init(setup: Setup) -> io::Result<ExitCode> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    if !setup.network {
        loopback::bring_up()?;
    }
    rustix::system::sethostname(b"sandbox")?;
    spare_others();
    // That of the caller is no matter of the sandbox.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    root::build(&setup).map_err(refusal::explain)?;
    let Setup { listener, places, lock, owned, network, task_limit, .. } = setup;
    // It leads out.
    drop(places);
    limit(task_limit)?;
    open_file_limit::raise();
    drop_privileges()?;
    if network {
        leave_abstract_sockets()?;
    }
    let shutdown = ShutdownSignal::take()?;
    // Whoever made us waits for this, or for the reason why it does not come.
    control.write_all(&[1])?;
    let runtime = runtime()?;
    let result = runtime.block_on(serve(listener, owned.then_some(control), shutdown));
    // Work that still blocks a thread ends with the process.
    runtime.shutdown_background();
    drop(lock);
    result.map(|()| ExitCode::SUCCESS)
}

/// What holds without a cgroup.
fn limit(tasks: u32) -> io::Result<()> {
    if tasks > 0 {
        // The kernel counts those of this user namespace only.
        allow(Resource::Nproc, tasks.into())?;
    }
    // One byte is the kernel's word for none, also where a program of the machine would be started with it.
    allow(Resource::Core, 1)?;
    // Where the whole machine runs out of memory, a sandbox is to go first.
    fs::write("/proc/self/oom_score_adj", GOES_FIRST)
}

/// Allows no more than that, or what is allowed already: only the machine's root may raise it.
fn allow(resource: Resource, most: u64) -> io::Result<()> {
    let most = getrlimit(resource).maximum.map_or(most, |allowed| allowed.min(most));
    Ok(setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?)
}

/// What the kernel counts for a user, and so for several sandboxes together, is left to others as well. Best effort: older
/// kernels have no such limits.
fn spare_others() {
    let machines = fs::read_to_string("/proc/sys/fs/inotify/max_user_watches").unwrap_or_default();
    let watches = machines.trim().parse::<u32>().map_or(MAX_WATCHES, |all| (all / 4).min(MAX_WATCHES));
    let limits =
        [("max_inotify_instances", 32), ("max_inotify_watches", watches), ("max_user_namespaces", 0)];
    for (name, most) in limits {
        let _ = fs::write(Path::new("/proc/sys/user").join(name), most.to_string());
    }
}

fn drop_privileges() -> io::Result<()> {
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    set_no_new_privs(true)?;
    // What runs here has our user: it must get neither our memory nor our files.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    calls::give_up()
}

/// Unix sockets without a file go with the network: those of the machine's own programs are no part of it, where the
/// kernel can tell them from ours (Linux 6.12).
fn leave_abstract_sockets() -> io::Result<()> {
    let restricted = Ruleset::default().scope(Scope::AbstractUnixSocket).and_then(Ruleset::create);
    restricted.and_then(RulesetCreated::restrict_self).map(drop).map_err(io::Error::other)
}

/// Serves whoever connects until the guest's time is up, it is told to end, or its owner is gone.
async fn serve(listener: OwnedFd, owner: Option<UnixStream>, shutdown: ShutdownSignal) -> io::Result<()> {
    let mut options = Options { needs_bind: true, ..Options::new(STATE_DIR) };
    let env = [("HOME", "/home/sandbox"), ("USER", "sandbox"), ("LANG", "C.UTF-8")];
    options.env.extend(env.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let guest = Guest::new(options)?;
    tokio::select! {
        never = accept(listener, &guest) => match never? {},
        result = reaper::run(guest.children().clone()) => result,
        () = guest.expired() => state_file::create_marker(&Path::new(STATE_DIR).join(EXPIRED)),
        told = shutdown.received() => told,
        result = owner_left(owner) => result,
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

/// Resolves when the maker of the sandbox, if it owns it, has closed its end: nothing else comes from there.
async fn owner_left(owner: Option<UnixStream>) -> io::Result<()> {
    let Some(owner) = owner else { return std::future::pending().await };
    owner.set_nonblocking(true)?;
    let mut owner = tokio::net::UnixStream::from_std(owner)?;
    while owner.read(&mut [0]).await.unwrap_or(0) > 0 {}
    Ok(())
}
