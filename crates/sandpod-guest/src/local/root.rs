//! The file system of a local sandbox: the machine's system directories, read-only, and writable places.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};
use rustix::process::pivot_root;

use super::USER;

/// Where the new root is built; the machine's own /tmp is out of sight from there on.
const ROOT: &str = "/tmp";
/// The system directories of the machine that are there read-only.
const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt"];
/// What programs need of /etc; all else there is the machine's own business.
const SETTINGS: [&str; 6] =
    ["alternatives", "ld.so.cache", "ld.so.conf.d", "localtime", "nsswitch.conf", "ssl/certs"];
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
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

/// Builds the root and makes it this process's own. The working directory holds the writable places.
pub(super) fn build(network: bool) -> io::Result<()> {
    let root = Path::new(ROOT);
    let empty = MountFlags::NOSUID | MountFlags::NODEV;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount("tmpfs", root, "tmpfs", empty, Some(c"mode=0755"))?;
    for directory in SYSTEM {
        place_system_directory(root, Path::new(directory))?;
    }
    make_settings(root, network)?;
    make_devices(root)?;
    fs::create_dir(root.join("proc"))?;
    mount("proc", root.join("proc"), "proc", empty | MountFlags::NOEXEC, None)?;
    for place in WRITABLE {
        fs::create_dir_all(place)?;
        fs::create_dir_all(root.join(place))?;
        mount_bind(place, root.join(place))?;
        restrict(&root.join(place), empty)?;
    }
    let old = root.join(".old");
    fs::create_dir(&old)?;
    pivot_root(root, &old)?;
    std::env::set_current_dir("/")?;
    unmount("/.old", UnmountFlags::DETACH)?;
    fs::remove_dir("/.old")?;
    // What is written outside the writable places would be kept in memory only.
    Ok(mount_remount("/", empty | MountFlags::RDONLY, c"")?)
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
    restrict(to, MountFlags::RDONLY)
}

/// Adds restrictions to a bind mount.
fn restrict(to: &Path, with: MountFlags) -> io::Result<()> {
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
    .fold(MountFlags::BIND | with, |flags, (_, flag)| flags | flag);
    mount_remount(to, flags, c"")?;
    Ok(())
}

fn make_settings(root: &Path, network: bool) -> io::Result<()> {
    let etc = root.join("etc");
    fs::create_dir(&etc)?;
    let resolver = network.then_some("resolv.conf");
    for name in SETTINGS.into_iter().chain(resolver) {
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
