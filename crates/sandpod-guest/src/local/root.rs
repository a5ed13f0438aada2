//! The file system of a local sandbox: the machine's system directories, read-only, and writable directories.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};
use rustix::process::pivot_root;

use super::USER;
use super::mount::{Mount, Prepared};
use super::setup::Setup;

/// Directory in which the new root is built, over the machine's own /tmp.
const ROOT: &str = "/tmp";
/// The machine's system directories that are mounted read-only.
const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt"];
/// Entries of /etc that programs need; the others are private to the machine.
const ETC_FILES: [&str; 6] =
    ["alternatives", "ld.so.cache", "ld.so.conf.d", "localtime", "nsswitch.conf", "ssl/certs"];
/// Small public files of /etc that are copied: the names of the distribution, and tables that libraries read.
const ETC_COPIES: [&str; 8] = [
    "os-release",
    "lsb-release",
    "debian_version",
    "alpine-release",
    "redhat-release",
    "services",
    "protocols",
    "mime.types",
];
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// Attributes of all mounts: no set-user-ID programs, and no devices except those that are bound by name.
pub(super) const NO_SUID_NO_DEV: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
pub(super) const READ_ONLY: u64 = libc::MOUNT_ATTR_RDONLY;
/// Options of /dev/shm, as in containers.
const SHARED_MEMORY: &CStr = c"mode=1777,size=64m";

/// Options of /dev/pts. The number of terminals is limited to that of concurrent commands, because all sandboxes share the
/// machine's few thousand.
const TERMINALS: &CStr = c"newinstance,ptmxmode=0666,mode=0620,max=512";

/// Builds the root and changes to it. The working directory holds the writable directories.
pub(super) fn build(setup: &Setup) -> io::Result<()> {
    let root = Path::new(ROOT);
    // Before other mounts hide the paths of the machine.
    let mounts = setup.mounts.iter().map(Mount::prepare).collect::<io::Result<Vec<_>>>()?;
    let empty = MountFlags::NOSUID | MountFlags::NODEV;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount("tmpfs", root, "tmpfs", empty, Some(c"mode=0755"))?;
    for directory in SYSTEM {
        bind_system_directory(root, Path::new(directory))?;
    }
    make_etc(root, setup.network)?;
    make_devices(root)?;
    make_proc(root)?;
    for (controller, cgroup) in &setup.cgroups {
        let inside = root.join("sys/fs/cgroup").join(controller);
        fs::create_dir_all(&inside)?;
        mount_bind(cgroup, &inside)?;
        set_mount_attributes(&inside, READ_ONLY | NO_SUID_NO_DEV)?;
    }
    for directory in setup.writable.iter().filter_map(|directory| directory.strip_prefix("/").ok()) {
        let inside = root.join(directory);
        fs::create_dir_all(&inside)?;
        mount_bind(directory, &inside)?;
        set_mount_attributes(&inside, NO_SUID_NO_DEV)?;
    }
    let old = root.join(".old");
    fs::create_dir(&old)?;
    pivot_root(root, &old)?;
    std::env::set_current_dir("/")?;
    unmount("/.old", UnmountFlags::DETACH)?;
    fs::remove_dir("/.old")?;
    // In the new root, so that links in writable directories lead nowhere else.
    mounts.iter().try_for_each(Prepared::attach)?;
    // Read-only, because files outside the writable directories would use memory.
    Ok(mount_remount("/", empty | MountFlags::RDONLY, c"")?)
}

/// Mounts a directory of the machine read-only, or copies it if it is a link.
fn bind_system_directory(root: &Path, directory: &Path) -> io::Result<()> {
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
    set_mount_attributes(to, READ_ONLY | NO_SUID_NO_DEV)
}

/// Sets attributes of a mount and of all mounts below it, such as a separate disk below `/usr`.
fn set_mount_attributes(at: &Path, with: u64) -> io::Result<()> {
    let at = CString::new(at.as_os_str().as_bytes())?;
    let attributes = libc::mount_attr { attr_set: with, attr_clr: 0, propagation: 0, userns_fd: 0 };
    change_mounts(CWD, &at, 0, &attributes)
}

/// Sets attributes of mounts that are not attached yet, and ends their mount propagation: later mounts on the machine do
/// not appear below them, nor mounts of the sandbox on the machine.
pub(super) fn isolate_tree(tree: BorrowedFd<'_>, with: u64) -> io::Result<()> {
    let propagation = libc::MS_PRIVATE;
    let attributes = libc::mount_attr { attr_set: with, attr_clr: 0, propagation, userns_fd: 0 };
    change_mounts(tree, c"", libc::AT_EMPTY_PATH, &attributes)
}

/// Changes a mount and all mounts below it.
#[expect(unsafe_code, reason = "the system call has no safe interface")]
fn change_mounts(
    dir: BorrowedFd<'_>,
    at: &CStr,
    flags: libc::c_int,
    attributes: &libc::mount_attr,
) -> io::Result<()> {
    // SAFETY: the kernel reads a NUL-terminated path and a struct of the given size.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            dir.as_raw_fd(),
            at.as_ptr(),
            libc::AT_RECURSIVE | flags,
            std::ptr::from_ref(attributes),
            size_of::<libc::mount_attr>(),
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

fn make_etc(root: &Path, network: bool) -> io::Result<()> {
    let etc = root.join("etc");
    fs::create_dir(&etc)?;
    let resolver = network.then_some("resolv.conf");
    for name in ETC_FILES.into_iter().chain(resolver) {
        let from = Path::new("/etc").join(name);
        let Ok(from) = from.canonicalize() else { continue };
        let to = etc.join(name);
        fs::create_dir_all(to.parent().unwrap_or(&etc))?;
        make_mount_point(&to, from.is_dir())?;
        bind_read_only(&from, &to)?;
    }
    for name in ETC_COPIES {
        let Ok(content) = fs::read(Path::new("/etc").join(name)) else { continue };
        fs::write(etc.join(name), content)?;
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

/// Mounts /proc with the sandbox's processes only. Files about the machine are those that any user may read, except keys.
fn make_proc(root: &Path) -> io::Result<()> {
    let proc = root.join("proc");
    fs::create_dir(&proc)?;
    mount("proc", &proc, "proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)?;
    let keys = ["keys", "key-users"].map(|name| proc.join(name));
    keys.iter().filter(|file| file.exists()).try_for_each(|file| Ok(mount_bind("/dev/null", file)?))
}

pub(super) fn make_mount_point(path: &Path, directory: bool) -> io::Result<()> {
    if directory { fs::create_dir(path) } else { fs::File::create(path).map(drop) }
}
