//! Removes untrusted directory trees of any depth with a fixed stack and few open files.
//!
//! Code in a sandbox can create a directory with tens of thousands of levels. A recursive removal overflows its stack or runs
//! out of file descriptors. [`remove`] descends [`MAX_OPEN`] levels; deeper directories are moved up to the top and removed
//! there. No link is followed, and nothing outside of the tree is changed, even if directories are moved meanwhile: all
//! operations are relative to open directories.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::{Errno, Result};
use rustix::path::Arg;

/// Maximum number of open directories. Ordinary trees are less deep and are removed without moving directories.
pub const MAX_OPEN: usize = 32;

/// How often a directory may be non-empty again after its content was removed: another process may write to it, and deep
/// directories are moved to the top.
const MAX_ROUNDS: u32 = 100_000;

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What to do with directories whose mode denies access to their owner.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NoAccess {
    /// Grant access by changing the mode.
    Grant,
    /// Return an error, unless they are empty.
    Fail,
}

/// Removes `path`, relative to `dir`: a file, a link itself, or a directory with its content.
///
/// An entry that its parent protects, such as a mount point or an entry of a read-only directory, is an error before its content
/// is changed. Entries that other processes remove meanwhile are ignored. If other processes keep filling the tree, the result
/// is [`Errno::NOTEMPTY`].
///
/// ```
/// use rustix::fs::CWD;
/// use sandpod_remove::{NoAccess, remove};
///
/// # let dir = tempfile::tempdir()?;
/// let tree = dir.path().join("tree");
/// std::fs::create_dir_all(tree.join("with/all/below"))?;
/// remove(CWD, &tree, NoAccess::Fail)?;
/// assert!(!tree.exists());
/// # Ok::<_, std::io::Error>(())
/// ```
pub fn remove(dir: impl AsFd, path: impl Arg, closed: NoAccess) -> Result<()> {
    let path = path.into_c_str()?.into_owned();
    if unlink(dir.as_fd(), &path)? == Entry::IsFull {
        let mut removal = Removal { dir: dir.as_fd(), closed, levels: Vec::new(), moved: 0, rounds: 0 };
        removal.enter(path)?;
        removal.empty()?;
    }
    Ok(())
}

/// Result of unlinking an entry.
#[derive(Eq, PartialEq)]
enum Entry {
    IsGone,
    /// It is a directory that is not empty.
    IsFull,
}

/// Removes an entry, unless it is a directory that is not empty. The kernel checks permissions before it checks for content.
fn unlink(dir: BorrowedFd<'_>, name: &CStr) -> Result<Entry> {
    let unlinked = match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR),
        unlinked => unlinked,
    };
    match unlinked {
        Ok(()) => Ok(Entry::IsGone),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(Entry::IsFull),
        Err(errno) => Err(errno),
    }
}

/// Ignores the error for a missing entry: other processes may remove entries, too.
fn unless_missing<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(Errno::NOENT) => Ok(None),
        result => result.map(Some),
    }
}

struct Removal<'a> {
    /// The directory that contains the top.
    dir: BorrowedFd<'a>,
    closed: NoAccess,
    /// The open directories, from the top down.
    levels: Vec<Level>,
    /// Number of names tried for directories that are moved up.
    moved: u64,
    rounds: u32,
}

struct Level {
    /// The name in the level above.
    name: CString,
    entries: Dir,
}

impl Removal<'_> {
    /// Removes all levels with their content.
    fn empty(&mut self) -> Result<()> {
        while let Some(level) = self.levels.last_mut() {
            match level.next_name()? {
                Some(name) => self.remove_entry(name)?,
                None => self.leave()?,
            }
        }
        Ok(())
    }

    /// Returns the deepest open directory.
    fn here(&self) -> Result<BorrowedFd<'_>> {
        self.levels.last().map_or(Ok(self.dir), |level| level.entries.fd())
    }

    fn remove_entry(&mut self, name: CString) -> Result<()> {
        match unless_missing(unlink(self.here()?, &name))? {
            Some(Entry::IsFull) if self.levels.len() < MAX_OPEN => self.enter(name),
            Some(Entry::IsFull) => self.move_up(&name),
            Some(Entry::IsGone) | None => Ok(()),
        }
    }

    fn enter(&mut self, name: CString) -> Result<()> {
        self.open_up(&name)?;
        let opened = rustix::fs::openat(self.here()?, &name, DIRECTORY | OFlags::RDONLY, Mode::empty());
        if let Some(fd) = unless_missing(opened)? {
            self.levels.push(Level { name, entries: Dir::new(fd)? });
        }
        Ok(())
    }

    /// Removes the deepest directory, or reads it again if it is not empty.
    fn leave(&mut self) -> Result<()> {
        let Some(Level { name, .. }) = self.levels.pop() else { return Ok(()) };
        if unless_missing(unlink(self.here()?, &name))? != Some(Entry::IsFull) {
            return Ok(());
        }
        self.rounds += 1;
        if self.rounds == MAX_ROUNDS { Err(Errno::NOTEMPTY) } else { self.enter(name) }
    }

    /// Moves a directory to the top, where it is removed later.
    fn move_up(&mut self, name: &CStr) -> Result<()> {
        let Some(top) = self.levels.first() else { return Ok(()) };
        self.open_up(name)?;
        loop {
            let fresh = format!(".removed-{}", self.moved);
            self.moved += 1;
            match rustix::fs::renameat(self.here()?, name, top.entries.fd()?, fresh) {
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR | Errno::ISDIR) => {} // the name is taken
                renamed => return unless_missing(renamed).map(drop),
            }
        }
    }

    /// Grants the owner access to a directory, if requested: listing, emptying and moving it needs all rights.
    fn open_up(&self, name: &CStr) -> Result<()> {
        if self.closed == NoAccess::Fail {
            return Ok(());
        }
        let found = rustix::fs::openat(self.here()?, name, DIRECTORY | OFlags::PATH, Mode::empty());
        let Some(found) = unless_missing(found)? else { return Ok(()) };
        if !Mode::from_raw_mode(rustix::fs::fstat(&found)?.st_mode).contains(Mode::RWXU) {
            // By descriptor, because the name could have become a link. If this fails, the next operation reports the reason.
            let _ = rustix::fs::chmod(format!("/proc/self/fd/{}", found.as_raw_fd()), Mode::RWXU);
        }
        Ok(())
    }
}

impl Level {
    /// Returns the name of the next entry.
    fn next_name(&mut self) -> Result<Option<CString>> {
        for entry in self.entries.by_ref() {
            let entry = entry?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                return Ok(Some(entry.file_name().to_owned()));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
