//! The isolated environment in which inputs run: an empty root, no network and no rights. An input that means "delete /"
//! has nothing to delete.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, mount_remount, unmount,
};
use rustix::process::{getgid, getuid, pivot_root};
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, set_capabilities, set_no_new_privs, unshare_unsafe,
};

/// The only directory in the cell that inputs may write.
pub const WORK: &str = "/cell";
/// The user inside of the cell.
const USER: u32 = 1000;
/// The size of the file system. Subjects must also handle a full one.
const OPTIONS: &std::ffi::CStr = c"mode=0755,size=64m,nr_inodes=16k";

/// Creates the cell and enters it. The given directories exist in it under their own names, but cannot be listed.
///
/// # Errors
///
/// If the machine does not permit user namespaces.
pub fn enter(reads: &[PathBuf], writes: &[PathBuf]) -> io::Result<()> {
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    new_namespaces(
        UnshareFlags::NEWUSER | UnshareFlags::NEWNS | UnshareFlags::NEWNET | UnshareFlags::NEWIPC,
    )?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{USER} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{USER} {group} 1"))?;
    let root = writes.first().ok_or_else(|| io::Error::other("SANDPOD_FUZZ_WRITES is not set"))?.join("cell");
    fs::create_dir_all(&root)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount(
        "tmpfs",
        &root,
        "tmpfs",
        MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
        Some(OPTIONS),
    )?;
    for directory in reads {
        share(&root, directory, MountFlags::RDONLY)?;
    }
    for directory in writes {
        share(&root, directory, MountFlags::empty())?;
    }
    fs::create_dir(inside(&root, Path::new(WORK)))?;
    move_into(&root)?;
    fs::set_permissions("/", fs::Permissions::from_mode(0o555))?;
    let nothing = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: nothing, permitted: nothing, inheritable: nothing })?;
    set_no_new_privs(true)?;
    Ok(())
}

/// Removes the files that an input left in [`WORK`].
pub fn clean() {
    for entry in fs::read_dir(WORK).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        // Files that cannot be removed stay; the size of the file system is limited.
        let _ = if is_directory { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    }
}

#[expect(unsafe_code, reason = "rustix marks all of unshare unsafe for the sake of CLONE_FILES")]
fn new_namespaces(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: only CLONE_FILES can close descriptors of other threads, and it is not among the flags.
    unsafe { unshare_unsafe(flags) }
}

/// Mounts a directory in the new root under its own name, below directories that cannot be listed.
fn share(root: &Path, directory: &Path, flags: MountFlags) -> io::Result<()> {
    let target = inside(root, directory);
    let above: Vec<_> = target.ancestors().skip(1).take_while(|path| *path != root).collect();
    for path in above.iter().rev().filter(|path| !path.exists()) {
        fs::create_dir(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o111))?;
    }
    fs::create_dir(&target)?;
    mount_bind(directory, &target)?;
    mount_remount(
        &target,
        MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | flags,
        c"",
    )?;
    Ok(())
}

fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn move_into(root: &Path) -> io::Result<()> {
    let old = root.join(".old");
    fs::create_dir(&old)?;
    pivot_root(root, &old)?;
    std::env::set_current_dir("/")?;
    unmount("/.old", UnmountFlags::DETACH)?;
    fs::remove_dir("/.old")
}
