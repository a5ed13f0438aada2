//! Removing what others have made: a tree of any depth, with a fixed stack and few open files.
//!
//! Code in a sandbox can make a directory that is tens of thousands of levels deep. A removal that calls itself for
//! each level then overflows its stack, or runs out of open files. [`remove`] goes down [`MAX_OPEN`] levels; what
//! lies deeper is moved up to the top, and is met there again. No link is followed, and nothing outside of the tree is
//! touched, whatever is moved meanwhile: all is done relative to directories that are open.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::{Errno, Result};
use rustix::path::Arg;

/// The directories that are open at a time. Honest trees are less deep, and are removed without moving anything.
pub const MAX_OPEN: usize = 32;

/// How often a directory may have something in it again after all in it was removed: because somebody writes
/// meanwhile, or, at the top, because we moved up what lay too deep.
const MAX_ROUNDS: u32 = 100_000;

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What becomes of directories that their owner has closed to all, also to their owner.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Closed {
    /// They are opened, as far as we may.
    Open,
    /// They are an error, unless they are empty.
    Refuse,
}

/// Removes what `path` names, from `dir` if it is relative: a file, a link itself, a directory with all in it.
///
/// What can't be removed for its place's sake, as a mount point or what is in a directory that may not be written,
/// is refused before anything in it is touched. What others remove meanwhile is not missed. Who refills the tree for as
/// long as we remove gets [`Errno::NOTEMPTY`] in the end.
///
/// ```
/// use rustix::fs::CWD;
/// use sandpod_remove::{Closed, remove};
///
/// # let dir = tempfile::tempdir()?;
/// let tree = dir.path().join("tree");
/// std::fs::create_dir_all(tree.join("with/all/below"))?;
/// remove(CWD, &tree, Closed::Refuse)?;
/// assert!(!tree.exists());
/// # Ok::<_, std::io::Error>(())
/// ```
pub fn remove(dir: impl AsFd, path: impl Arg, closed: Closed) -> Result<()> {
    let path = path.into_c_str()?.into_owned();
    if unlink(dir.as_fd(), &path)? == Entry::IsFull {
        let mut removal = Removal { dir: dir.as_fd(), closed, levels: Vec::new(), moved: 0, rounds: 0 };
        removal.enter(path)?;
        removal.empty()?;
    }
    Ok(())
}

/// What became of an entry.
#[derive(Eq, PartialEq)]
enum Entry {
    IsGone,
    /// It is a directory with something in it.
    IsFull,
}

/// Removes an entry, unless it is a directory with something in it. The kernel looks first whether it could be
/// removed if it were empty.
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

/// No error for what is not there: others may remove, too.
fn unless_missing<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(Errno::NOENT) => Ok(None),
        result => result.map(Some),
    }
}

struct Removal<'a> {
    /// Where the top is.
    dir: BorrowedFd<'a>,
    closed: Closed,
    /// The directories that are open, from the top down.
    levels: Vec<Level>,
    /// How many names were tried for what is moved up.
    moved: u64,
    rounds: u32,
}

struct Level {
    /// In the level above.
    name: CString,
    entries: Dir,
}

impl Removal<'_> {
    /// Removes all levels, and what is in them.
    fn empty(&mut self) -> Result<()> {
        while let Some(level) = self.levels.last_mut() {
            match level.next_name()? {
                Some(name) => self.remove_entry(name)?,
                None => self.leave()?,
            }
        }
        Ok(())
    }

    /// The deepest directory that is open.
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

    /// Removes the deepest directory, in which nothing is left; if something is, goes through it again.
    fn leave(&mut self) -> Result<()> {
        let Some(Level { name, .. }) = self.levels.pop() else { return Ok(()) };
        if unless_missing(unlink(self.here()?, &name))? != Some(Entry::IsFull) {
            return Ok(());
        }
        self.rounds += 1;
        if self.rounds == MAX_ROUNDS { Err(Errno::NOTEMPTY) } else { self.enter(name) }
    }

    /// Moves a directory to the top, where it is met again.
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

    /// Opens a directory that is closed to its owner, if we are to: who lists, empties or moves it needs all rights.
    fn open_up(&self, name: &CStr) -> Result<()> {
        if self.closed == Closed::Refuse {
            return Ok(());
        }
        let found = rustix::fs::openat(self.here()?, name, DIRECTORY | OFlags::PATH, Mode::empty());
        let Some(found) = unless_missing(found)? else { return Ok(()) };
        if !Mode::from_raw_mode(rustix::fs::fstat(&found)?.st_mode).contains(Mode::RWXU) {
            // By its descriptor, since a name could have become a link. If we may not, what comes next says why.
            let _ = rustix::fs::chmod(format!("/proc/self/fd/{}", found.as_raw_fd()), Mode::RWXU);
        }
        Ok(())
    }
}

impl Level {
    /// The name of the next entry.
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
