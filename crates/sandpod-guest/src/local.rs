//! A sandbox on this machine: the guest in namespaces of its own.
//!
//! It consists of two processes. The outer one receives its setup from the control socket at its standard input, makes the
//! namespaces and waits for a copy of itself, which is their PID 1. The inner one builds its own root from the
//! machine's system directories (read-only) and writable directories, drops all privileges, applies a seccomp denylist
//! and serves connections. When it ends, the kernel kills all other processes in the namespaces.
//!
//! It protects the machine's files, processes and network from careless code. It does not protect against a kernel
//! exploit.

mod loopback;
mod mount;
mod namespace_error;
mod root;
mod seccomp_denylist;
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
use mount::Mount;
use setup::Setup;

/// The user id inside.
const USER: u32 = 1000;
/// Name of the guest's processes.
const NAME: &std::ffi::CStr = c"sandpod-guest";
/// Directory of the guest's state, inside.
const STATE_DIR: &str = "/run/sandpod";
/// Value that makes the kernel's OOM killer prefer processes of the sandbox; the maximum is 1000.
const OOM_SCORE_ADJ: &str = "500";
/// Maximum number of inotify watches of a sandbox; at most a quarter of a user's limit on this machine.
const MAX_WATCHES: u32 = 32_768;
/// Marker file for a guest whose time is up, so that it is not started again.
const EXPIRED: &str = "expired";

/// Runs the guest in namespaces of its own, with the setup that comes through the Unix socket at the standard
/// input.
///
/// The program must call this first, while it has one thread.
#[must_use]
pub fn run() -> ExitCode {
    enter().unwrap_or_else(|error| {
        // The creator of the sandbox shows this as the reason why it did not start.
        #[expect(clippy::print_stderr, reason = "no client is connected yet")]
        {
            eprintln!("{error}");
        }
        ExitCode::from(125)
    })
}

/// The outer process: makes the namespaces and waits for its copy inside.
fn enter() -> io::Result<ExitCode> {
    close_inherited_files()?;
    // Otherwise its name is the number of the descriptor from which it was executed.
    rustix::thread::set_name(NAME)?;
    // Detaches from the terminal, which sends its signals to the session.
    rustix::process::setsid()?;
    let mut setup = Setup::receive(io::stdin().as_fd())?;
    rustix::stdio::dup2_stderr(&setup.log)?;
    if setup.user.is_some() {
        setup.mounts.iter_mut().for_each(Mount::open);
    }
    setup.user.map_or(Ok(()), change_user)?;
    // A directory that was opened outside cannot be mounted inside, unless it is the working directory.
    rustix::process::fchdir(&setup.writable_dirs)?;
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
    new_namespaces(namespaces).and_then(|()| map_user(user, group)).map_err(namespace_error::explain)?;
    new_keyring()?;
    let Some(guest) = fork()? else { return init(setup) };
    // To end the sandbox, clients kill that process. This process holds the lock, too, until the kernel reports that all
    // processes inside have ended.
    let lock = File::from(setup.lock);
    lock.write_all_at(guest.as_raw_nonzero().to_string().as_bytes(), 0)?;
    let ended = waitpid(Some(guest), WaitOptions::empty())?;
    drop(lock);
    let code = ended.and_then(|(_, status)| status.exit_status()).unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Forks the first process of the new namespaces. Returns `None` in there.
#[expect(unsafe_code, reason = "a copy of the whole process has no safe interface")]
fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: this process has one thread, so its copy is complete.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        child => Ok(Pid::from_raw(child)),
    }
}

/// Closes files that this process inherited by accident.
#[expect(unsafe_code, reason = "closes descriptors that other code owns")]
fn close_inherited_files() -> io::Result<()> {
    // SAFETY: this process has opened no file but the first three yet.
    Ok(unsafe { syscalls::close_from(3, 0) }?)
}

/// Changes to an unprivileged user, for a guest that root starts.
fn change_user(user: u32) -> io::Result<()> {
    set_thread_groups(&[])?;
    set_thread_gid(Gid::from_raw(user))?;
    set_thread_uid(Uid::from_raw(user))?;
    // Otherwise this process's files in /proc would be root's from here on.
    Ok(set_dumpable_behavior(DumpableBehavior::Dumpable)?)
}

/// Maps this process's user to `USER` in the new user namespace, and no other.
fn map_user(user: u32, group: u32) -> io::Result<()> {
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{USER} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{USER} {group} 1"))
}

/// Leaves the caller's keyring, which processes inherit across namespaces.
#[expect(unsafe_code, reason = "keyrings have no safe interface")]
fn new_keyring() -> io::Result<()> {
    let join = libc::c_long::from(libc::KEYCTL_JOIN_SESSION_KEYRING);
    // SAFETY: without a name the kernel reads no memory.
    let joined = unsafe { libc::syscall(libc::SYS_keyctl, join, std::ptr::null::<libc::c_char>()) };
    match io::Error::last_os_error() {
        _ if joined >= 0 => Ok(()),
        // A kernel without keys, or a container that denies access to them.
        error if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => Ok(()),
        error => Err(error),
    }
}

#[expect(unsafe_code, reason = "rustix marks all of unshare unsafe because of CLONE_FILES")]
fn new_namespaces(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: only CLONE_FILES can affect descriptors of other threads, and it is not among the flags.
    Ok(unsafe { unshare_unsafe(flags) }?)
}

/// The inner process, PID 1: builds the root, drops privileges and serves.
fn init(setup: Setup) -> io::Result<ExitCode> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    if !setup.network {
        loopback::bring_up()?;
    }
    rustix::system::sethostname(b"sandbox")?;
    limit_shared_resources();
    // The caller's umask must not affect the sandbox.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    root::build(&setup).map_err(namespace_error::explain)?;
    let Setup { listener, writable_dirs, lock, owned, network, task_limit, .. } = setup;
    // This directory is outside the sandbox.
    drop(writable_dirs);
    set_rlimits(task_limit)?;
    open_file_limit::raise();
    drop_privileges()?;
    if network {
        block_abstract_sockets()?;
    }
    let shutdown = ShutdownSignal::take()?;
    // The creator waits for this byte, or for the reason why it does not come.
    control.write_all(&[1])?;
    let runtime = runtime()?;
    let result = runtime.block_on(serve(listener, owned.then_some(control), shutdown));
    // Tasks that still block a thread end with the process.
    runtime.shutdown_background();
    drop(lock);
    result.map(|()| ExitCode::SUCCESS)
}

/// Sets limits that need no cgroup.
fn set_rlimits(tasks: u32) -> io::Result<()> {
    if tasks > 0 {
        // The kernel counts only the processes of this user namespace.
        lower_limit(Resource::Nproc, tasks.into())?;
    }
    // The kernel treats a limit of one byte as no core dumps, also for programs to which dumps are piped.
    lower_limit(Resource::Core, 1)?;
    // When the machine runs out of memory, sandboxes should be killed first.
    fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ)
}

/// Lowers a limit. It is never raised, because only root on the machine may do that.
fn lower_limit(resource: Resource, most: u64) -> io::Result<()> {
    let most = getrlimit(resource).maximum.map_or(most, |allowed| allowed.min(most));
    Ok(setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?)
}

/// Limits resources that the kernel counts per user, and which several sandboxes share. Best effort: older kernels have no
/// such limits.
fn limit_shared_resources() {
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
    // Commands have the same user and must not access this process's memory or files.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    seccomp_denylist::apply()
}

/// Blocks abstract Unix sockets of the machine's own programs, which the network namespace would otherwise share, if the
/// kernel supports that (Linux 6.12).
fn block_abstract_sockets() -> io::Result<()> {
    let restricted = Ruleset::default().scope(Scope::AbstractUnixSocket).and_then(Ruleset::create);
    restricted.and_then(RulesetCreated::restrict_self).map(drop).map_err(io::Error::other)
}

/// Serves connections until the guest expires, receives a shutdown signal, or its owner is gone.
async fn serve(listener: OwnedFd, owner: Option<UnixStream>, shutdown: ShutdownSignal) -> io::Result<()> {
    let mut options = Options { needs_bind: true, ..Options::new(STATE_DIR) };
    let env = [("HOME", "/home/sandbox"), ("USER", "sandbox"), ("LANG", "C.UTF-8")];
    options.env.extend(env.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let guest = Guest::new(options)?;
    tokio::select! {
        never = accept(listener, &guest) => match never? {},
        result = reaper::run(guest.children().clone()) => result,
        () = guest.expired() => state_file::create_marker(&Path::new(STATE_DIR).join(EXPIRED)),
        received = shutdown.received() => received,
        result = owner_closed(owner) => result,
    }
}

async fn accept(listener: OwnedFd, guest: &Guest) -> io::Result<Infallible> {
    let listener = UnixListener::from(listener);
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let accept = |context: &mut Context<'_>| listener.poll_accept(context).map_ok(|(stream, _)| stream);
    let serve = |stream| {
        let guest = guest.clone();
        // A broken stream needs no handling here: its client opens another one.
        Some(async move { drop(guest.serve_stream(stream).await) })
    };
    Ok(accept_each(accept, MAX_STREAMS, serve).await)
}

/// Resolves when the sandbox's creator, if it owns it, has closed the control socket. Nothing else is sent there.
async fn owner_closed(owner: Option<UnixStream>) -> io::Result<()> {
    let Some(owner) = owner else { return std::future::pending().await };
    owner.set_nonblocking(true)?;
    let mut owner = tokio::net::UnixStream::from_std(owner)?;
    while owner.read(&mut [0]).await.unwrap_or(0) > 0 {}
    Ok(())
}
