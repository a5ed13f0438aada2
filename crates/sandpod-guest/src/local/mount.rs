//! Files and directories of the machine that are mounted in a sandbox.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use super::root::{NO_SUID_NO_DEV, READ_ONLY, isolate_tree, make_mount_point};

const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// A file or directory of the machine, and its path in the sandbox.
#[derive(Debug)]
pub(super) struct Mount {
    /// The path outside, without symbolic links.
    pub(super) from: PathBuf,
    pub(super) to: PathBuf,
    pub(super) writable: bool,
    /// The mounts at the path, if they were cloned outside of the namespaces.
    tree: Option<OwnedFd>,
}

impl Mount {
    pub(super) fn new(from: impl Into<PathBuf>, to: impl Into<PathBuf>, writable: bool) -> Self {
        Self { from: from.into(), to: to.into(), writable, tree: None }
    }

    /// Clones the mounts as root, before this process changes to a user that may not reach the path. If root may not do
    /// so, as in some containers, they are cloned inside.
    pub(super) fn open(&mut self) {
        self.tree = self.clone_tree().ok();
    }

    /// Clones the mounts and sets their attributes before any program can use them.
    fn clone_tree(&self) -> io::Result<OwnedFd> {
        let from = open_without_links(&self.from)?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::AT_EMPTY_PATH;
        let tree = open_tree(&from, "", flags)?;
        let access = if self.writable { 0 } else { READ_ONLY };
        isolate_tree(tree.as_fd(), access | NO_SUID_NO_DEV)?;
        Ok(tree)
    }

    /// Prepares the mount before other mounts hide its path.
    pub(super) fn prepare(&self) -> io::Result<Prepared<'_>> {
        let tree = match &self.tree {
            Some(tree) => tree.as_fd().try_clone_to_owned(),
            None => self.clone_tree(),
        };
        let failed = |error| io::Error::other(format!("{} can't be mounted ({error})", self.from.display()));
        Ok(Prepared { mount: self, tree: tree.map_err(failed)? })
    }
}

/// A mount that is not attached to a directory yet.
pub(super) struct Prepared<'a> {
    mount: &'a Mount,
    tree: OwnedFd,
}

impl Prepared<'_> {
    /// Mounts it in the root of this process. Creates the mount point.
    pub(super) fn attach(&self) -> io::Result<()> {
        let failed = |error| {
            let to = self.mount.to.display();
            io::Error::other(format!("nothing can be mounted at {to} ({error})"))
        };
        self.try_attach().map_err(failed)
    }

    fn try_attach(&self) -> io::Result<()> {
        let to = &self.mount.to;
        fs::create_dir_all(to.parent().unwrap_or(to))?;
        if !to.exists() {
            let is_dir = FileType::from_raw_mode(fstat(&self.tree)?.st_mode).is_dir();
            make_mount_point(to, is_dir)?;
        }
        Ok(move_mount(&self.tree, "", CWD, to, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
    }
}

/// Opens a path that had no symbolic links when the sandbox was created. Fails if it has one now: another user may have
/// replaced a part of it to have other files mounted.
fn open_without_links(path: &Path) -> io::Result<OwnedFd> {
    match openat2(CWD, path, PATH_ONLY, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        // The kernel lacks the call, or a filter denies it.
        Err(Errno::NOSYS | Errno::PERM) => open_and_compare(path),
        Err(Errno::LOOP) => Err(has_link()),
        opened => Ok(opened?),
    }
}

/// Opens a path, and fails if that led to another one.
fn open_and_compare(path: &Path) -> io::Result<OwnedFd> {
    let opened = open(path, PATH_ONLY, Mode::empty())?;
    let found = fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd()))?;
    if found == path { Ok(opened) } else { Err(has_link()) }
}

fn has_link() -> io::Error {
    io::Error::other("a part of this path is a symbolic link now")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_path_that_has_become_a_link_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        fs::create_dir_all(dir.join("real/sub")).unwrap();
        symlink("real", dir.join("link")).unwrap();
        for opener in [open_without_links, open_and_compare] {
            opener(&dir.join("real")).unwrap();
            opener(&dir.join("real/sub")).unwrap();
            for path in ["link", "link/sub"] {
                let why = opener(&dir.join(path)).unwrap_err().to_string();
                assert!(why.contains("is a symbolic link now"), "{path}: {why}");
            }
            assert_eq!(opener(&dir.join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        }
    }
}
