//! Temporary files beside their targets. A killed guest leaves them behind; the next one finds their journal entries in
//! the state directory and deletes them.
//!
//! An entry is a symbolic link to the temporary path, because links are made and removed atomically.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags};
use sandpod_remove::NoAccess;

use super::resolver::real_path;

/// Prefix of all temporary names.
const PREFIX: &str = ".sandpod-";

/// The journal of temporary files.
#[derive(Clone)]
pub(crate) struct TempJournal(Arc<Path>);

impl TempJournal {
    pub(super) fn new(state_dir: &Path) -> Self {
        Self(state_dir.join("temporary").into())
    }

    /// Records a temporary path, best effort.
    fn entry(&self, temporary: &Path, name: &OsStr) -> Option<PathBuf> {
        let entry = self.0.join(name);
        let recorded = symlink(temporary, &entry).or_else(|_| {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
            symlink(temporary, &entry)
        });
        recorded.ok().map(|()| entry)
    }

    /// Deletes all recorded temporary files. Call it before any other work.
    pub(super) fn clean(&self) {
        let Ok(entries) = fs::read_dir(&self.0) else { return };
        for entry in entries.flatten().map(|entry| entry.path()) {
            if let Ok(left) = fs::read_link(&entry)
                && left.file_name().is_some_and(is_temporary)
            {
                let _ = sandpod_remove::remove(CWD, &left, NoAccess::Fail);
            }
            let _ = fs::remove_file(entry);
        }
    }
}

/// Returns whether a name is one of ours.
pub(super) fn is_temporary(name: &OsStr) -> bool {
    name.as_bytes().starts_with(PREFIX.as_bytes())
}

/// A temporary name in a directory. Dropping it deletes its file, unless that was renamed.
pub(super) struct Temporary {
    dir: Arc<OwnedFd>,
    name: OsString,
    entry: Option<PathBuf>,
    is_there: bool,
}

impl Temporary {
    /// Returns a new, unused name.
    pub(super) fn new(dir: &Arc<OwnedFd>, temp_journal: &TempJournal) -> rustix::io::Result<Self> {
        let mut random = [0_u8; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let name = OsString::from(format!("{PREFIX}{:016x}", u64::from_ne_bytes(random)));
        let entry = temp_journal.entry(&real_path(dir.as_fd())?.join(&name), &name);
        Ok(Self { dir: dir.clone(), name, entry, is_there: true })
    }

    pub(super) fn dir(&self) -> &Arc<OwnedFd> {
        &self.dir
    }

    pub(super) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Returns its real path.
    pub(super) fn real_path(&self) -> rustix::io::Result<PathBuf> {
        Ok(real_path(self.dir.as_fd())?.join(&self.name))
    }

    /// Creates a file with this name.
    pub(super) fn create(&self, mode: u32) -> rustix::io::Result<File> {
        let new = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.dir, &self.name, new, Mode::from_raw_mode(mode)).map(File::from)
    }

    /// Opens the file with this name.
    pub(super) fn open(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.dir, &self.name, flags, Mode::empty())?.into())
    }

    /// Returns whether it was not renamed yet.
    pub(super) fn is_there(&self) -> bool {
        self.is_there
    }

    /// Renames its file within the same file system.
    pub(super) fn rename(&mut self, dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<()> {
        rustix::fs::renameat(&self.dir, &self.name, dir, name)?;
        self.is_there = false;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if self.is_there {
            let _ = sandpod_remove::remove(&self.dir, &self.name, NoAccess::Fail);
        }
        if let Some(entry) = &self.entry {
            let _ = fs::remove_file(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(dir: &Path) -> Arc<OwnedFd> {
        Arc::new(File::open(dir).unwrap().into())
    }

    #[test]
    fn drop_deletes_the_temporary_file_and_its_journal_entry() {
        let (state, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let temp_journal = TempJournal::new(state.path());
        for is_directory in [false, true] {
            let temporary = Temporary::new(&opened(dir.path()), &temp_journal).unwrap();
            let path = temporary.real_path().unwrap();
            if is_directory {
                fs::create_dir_all(path.join("a/b")).unwrap();
            } else {
                fs::write(&path, "x").unwrap();
            }
            assert_eq!(fs::read_dir(state.path().join("temporary")).unwrap().count(), 1);
            drop(temporary);
            assert!(!path.exists());
            assert_eq!(fs::read_dir(state.path().join("temporary")).unwrap().count(), 0);
        }
    }

    #[test]
    fn clean_deletes_only_temporary_files_of_a_killed_guest() {
        let (state, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let temp_journal = TempJournal::new(state.path());
        let temporary = Temporary::new(&opened(dir.path()), &temp_journal).unwrap();
        let left = temporary.real_path().unwrap();
        fs::write(&left, "x").unwrap();
        std::mem::forget(temporary);
        // A forged entry, as a command of the same user could write it.
        let precious = dir.path().join("precious");
        fs::write(&precious, "x").unwrap();
        symlink(&precious, state.path().join("temporary/forged")).unwrap();
        TempJournal::new(state.path()).clean();
        assert!(!left.exists() && precious.exists());
        assert_eq!(fs::read_dir(state.path().join("temporary")).unwrap().count(), 0);
    }
}
