//! A sandbox on this machine: the guest in namespaces of its own.
//!
//! The program starts twice. Outside it makes the namespaces and starts itself again as their
//! PID 1; there it builds a root of its own from the machine's system directories (read-only) and
//! empty writable places, drops all privileges and serves the socket that it got as standard input.
//! When that closes it ends, and the kernel ends everything else with it.
//!
//! It keeps careless code from the machine's files, processes and network. It is no wall against a
//! kernel exploit.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use rustix::fs::StatVfsMountFlags;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Signal, getgid, getuid, pivot_root, set_parent_process_death_signal};
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, set_capabilities, set_no_new_privs, unshare_unsafe,
};

use crate::{Guest, Options, reaper};

/// The user inside.
const USER: u32 = 1000;
/// Where the new root is built; the machine's own /tmp is out of sight from there on.
const ROOT: &str = "/tmp";
/// The system directories of the machine that are there read-only.
const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt"];
/// What programs need of /etc; all else there is the machine's own business.
const SETTINGS: [&str; 6] =
    ["alternatives", "ld.so.cache", "ld.so.conf.d", "localtime", "nsswitch.conf", "ssl/certs"];
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";
/// Writable places, as in every mode.
const WRITABLE: [&str; 8] = [
    "run/sandpod",
    "workspace",
    "tmp",
    "app",
    "home/sandbox",
    "large_tool_results",
    "conversation_history",
    "blobs",
];

/// Runs the guest in namespaces of its own, on the Unix socket that is our standard input.
///
/// The caller's program calls this first thing, while it has one thread.
#[must_use]
pub fn run() -> ExitCode {
    let stage = if std::process::id() == 1 { init } else { enter };
    stage().unwrap_or_else(|error| {
        // Its parent shows this as the reason why the sandbox did not start.
        #[expect(clippy::print_stderr, reason = "nobody listens on the socket yet")]
        {
            eprintln!("{error}");
        }
        ExitCode::from(125)
    })
}

/// Outside: makes the namespaces and waits for what runs in them.
fn enter() -> io::Result<ExitCode> {
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    let namespaces = UnshareFlags::NEWUSER
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWCGROUP;
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
    let status =
        Command::new("/proc/self/exe").args(std::env::args_os().skip(1)).stdout(Stdio::null()).status()?;
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
    // Without it there is no 127.0.0.1; a machine without `ip` does without.
    let _ = Command::new("ip").args(["link", "set", "lo", "up"]).stderr(Stdio::null()).status();
    rustix::system::sethostname(b"sandbox")?;
    build_root()?;
    clear_ambient_capability_set()?;
    set_capabilities(
        None,
        CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        },
    )?;
    set_no_new_privs(true)?;
    serve(&UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?))?;
    Ok(ExitCode::SUCCESS)
}

fn build_root() -> io::Result<()> {
    let root = Path::new(ROOT);
    let empty = MountFlags::NOSUID | MountFlags::NODEV;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount("tmpfs", root, "tmpfs", empty, Some(c"mode=0755"))?;
    for directory in SYSTEM {
        place_system_directory(root, Path::new(directory))?;
    }
    make_settings(root)?;
    make_devices(root)?;
    fs::create_dir(root.join("proc"))?;
    mount("proc", root.join("proc"), "proc", empty | MountFlags::NOEXEC, None)?;
    for place in WRITABLE {
        fs::create_dir_all(root.join(place))?;
    }
    let old = root.join(".old");
    fs::create_dir(&old)?;
    pivot_root(root, &old)?;
    std::env::set_current_dir("/")?;
    unmount("/.old", UnmountFlags::DETACH)?;
    fs::remove_dir("/.old")
}

/// Shows a directory of the machine read-only; where it is a link on the machine it is one here.
fn place_system_directory(root: &Path, directory: &Path) -> io::Result<()> {
    let inside = root.join(directory.strip_prefix("/").unwrap_or(directory));
    match fs::symlink_metadata(directory) {
        Err(_) => Ok(()),
        Ok(found) if found.is_symlink() => symlink(fs::read_link(directory)?, inside),
        Ok(_) => {
            fs::create_dir(&inside)?;
            bind_read_only(directory, &inside)
        }
    }
}

fn bind_read_only(from: &Path, to: &Path) -> io::Result<()> {
    mount_bind_recursive(from, to)?;
    // A user namespace may add restrictions to a mount and must keep those it has.
    let kept = rustix::fs::statvfs(to)?.f_flag;
    let flags = [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ]
    .into_iter()
    .filter(|(has, _)| kept.contains(*has))
    .fold(MountFlags::BIND | MountFlags::RDONLY, |flags, (_, flag)| flags | flag);
    mount_remount(to, flags, c"")?;
    Ok(())
}

fn make_settings(root: &Path) -> io::Result<()> {
    let etc = root.join("etc");
    fs::create_dir(&etc)?;
    for name in SETTINGS {
        let from = Path::new("/etc").join(name);
        let Ok(from) = from.canonicalize() else { continue };
        let to = etc.join(name);
        fs::create_dir_all(to.parent().unwrap_or(&etc))?;
        make_mount_point(&to, from.is_dir())?;
        bind_read_only(&from, &to)?;
    }
    fs::write(etc.join("passwd"), format!("sandbox:x:{USER}:{USER}::/home/sandbox:/bin/sh\n"))?;
    fs::write(etc.join("group"), format!("sandbox:x:{USER}:\n"))?;
    fs::write(etc.join("hosts"), "127.0.0.1 localhost sandbox\n")?;
    fs::write(etc.join("hostname"), "sandbox\n")
}

fn make_devices(root: &Path) -> io::Result<()> {
    let dev = root.join("dev");
    fs::create_dir(&dev)?;
    for name in DEVICES {
        let (from, to) = (Path::new("/dev").join(name), dev.join(name));
        make_mount_point(&to, false)?;
        mount_bind_recursive(&from, &to)?;
    }
    for directory in ["shm", "pts"] {
        fs::create_dir(dev.join(directory))?;
    }
    mount("tmpfs", dev.join("shm"), "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(c"mode=1777"))?;
    let terminals = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("devpts", dev.join("pts"), "devpts", terminals, Some(c"newinstance,ptmxmode=0666,mode=0620"))?;
    for (target, link) in [
        ("/proc/self/fd", "fd"),
        ("/proc/self/fd/0", "stdin"),
        ("/proc/self/fd/1", "stdout"),
        ("/proc/self/fd/2", "stderr"),
        ("pts/ptmx", "ptmx"),
    ] {
        symlink(target, dev.join(link))?;
    }
    Ok(())
}

fn make_mount_point(path: &PathBuf, directory: bool) -> io::Result<()> {
    if directory { fs::create_dir(path) } else { fs::File::create(path).map(drop) }
}

/// Serves every stream that comes over `control`, until that closes.
fn serve(control: &UnixStream) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let env = [("HOME", "/home/sandbox"), ("USER", "sandbox"), ("LANG", "C.UTF-8"), ("PATH", PATH)];
    let mut options = Options::new("/run/sandpod");
    options.env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let guest = {
        let _runtime = runtime.enter();
        Guest::new(options)?
    };
    // What lost its parent is ours, as the first process.
    runtime.spawn(reaper::run(guest.children().clone()));
    while let Some(stream) = receive_stream(control)? {
        let guest = guest.clone();
        runtime.spawn(async move {
            let stream = tokio::net::UnixStream::from_std(stream)?;
            guest.serve_stream(stream).await
        });
    }
    Ok(())
}

/// The next stream: a socket that the client sent through the control socket, with one byte.
fn receive_stream(control: &UnixStream) -> io::Result<Option<UnixStream>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received =
        recvmsg(control, &mut [io::IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let sockets = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
        _ => None,
    });
    let socket = sockets.flatten().next();
    let stream =
        socket.map(UnixStream::from).ok_or_else(|| io::Error::other("a stream came without its socket"))?;
    stream.set_nonblocking(true)?;
    Ok(Some(stream))
}
