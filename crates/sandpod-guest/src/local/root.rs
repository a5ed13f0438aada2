//! The file system of a local sandbox: the machine's system directories, read-only, and writable places.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};
use rustix::process::pivot_root;

use super::USER;
use super::setup::Setup;

/// Where the new root is built; the machine's own /tmp is out of sight from there on.
const ROOT: &str = "/tmp";
/// The system directories of the machine that are there read-only.
const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt"];
/// What programs need of /etc; all else there is the machine's own business.
const SETTINGS: [&str; 6] =
    ["alternatives", "ld.so.cache", "ld.so.conf.d", "localtime", "nsswitch.conf", "ssl/certs"];
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// What every mount is: without set-user-ID programs, and without devices but the few that are named here.
const HARMLESS: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
const READ_ONLY: u64 = libc::MOUNT_ATTR_RDONLY;
/// Memory that is shared by name, as containers have it: it is counted nowhere else.
const SHARED_MEMORY: &CStr = c"mode=1777,size=64m";

/// Its own terminals, as many as commands can run at once: all sandboxes share the machine's few thousand.
const TERMINALS: &CStr = c"newinstance,ptmxmode=0666,mode=0620,max=512";

/// Builds the root and makes it this process's own. The working directory holds the writable places.
pub(super) fn build(setup: &Setup) -> io::Result<()> {
    let root = Path::new(ROOT);
    let empty = MountFlags::NOSUID | MountFlags::NODEV;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount("tmpfs", root, "tmpfs", empty, Some(c"mode=0755"))?;
    for directory in SYSTEM {
        place_system_directory(root, Path::new(directory))?;
    }
    make_settings(root, setup.network)?;
    make_devices(root)?;
    make_proc(root)?;
    for (controller, cgroup) in &setup.cgroups {
        let inside = root.join("sys/fs/cgroup").join(controller);
        fs::create_dir_all(&inside)?;
        mount_bind(cgroup, &inside)?;
        restrict(&inside, READ_ONLY | HARMLESS)?;
    }
    for place in setup.writable.iter().filter_map(|place| place.strip_prefix("/").ok()) {
        let inside = root.join(place);
        fs::create_dir_all(&inside)?;
        mount_bind(place, &inside)?;
        restrict(&inside, HARMLESS)?;
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
    restrict(to, READ_ONLY | HARMLESS)
}

/// Adds restrictions to a mount and to all that is mounted below it: a disk of its own below `/usr` is one, too.
#[expect(unsafe_code, reason = "the system call has no safe interface")]
fn restrict(at: &Path, with: u64) -> io::Result<()> {
    let at = CString::new(at.as_os_str().as_bytes())?;
    let attributes = libc::mount_attr { attr_set: with, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: the kernel reads a path that ends with NUL and a struct of the size that is named.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            at.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size_of_val(&attributes),
        )
    };
    if done == 0 {
        return Ok(());
    }
    Err(match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENOSYS) => {
            io::Error::other("local sandboxes need Linux 5.14 or newer: use a newer kernel, or a cluster")
        }
        error => error,
    })
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
    mount("tmpfs", dev.join("shm"), "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(SHARED_MEMORY))?;
    let terminals = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("devpts", dev.join("pts"), "devpts", terminals, Some(TERMINALS))?;
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

/// Of the processes in the sandbox only; of the machine it tells what every user may know, but the names of keys.
fn make_proc(root: &Path) -> io::Result<()> {
    let proc = root.join("proc");
    fs::create_dir(&proc)?;
    mount("proc", &proc, "proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)?;
    let keys = ["keys", "key-users"].map(|name| proc.join(name));
    keys.iter().filter(|file| file.exists()).try_for_each(|file| Ok(mount_bind("/dev/null", file)?))
}

fn make_mount_point(path: &PathBuf, directory: bool) -> io::Result<()> {
    if directory { fs::create_dir(path) } else { fs::File::create(path).map(drop) }
}
