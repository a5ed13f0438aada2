//! The journal of a set of changes, for recovery after a crash.
//!
//! The journal exists from the moment when everything is prepared until everything is done. A guest that is killed before
//! has changed nothing; one that is killed later leaves the rest to the next guest, which completes the changes, or
//! rolls them back if the set was being rolled back because a step failed. Each step can be repeated. The journal protects
//! against the end of the guest only; it is not synced to disk, so it can be lost in a power failure.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use prost::Message;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use sandpod_protocol::{Failure, limits};

use super::resolver::{Location, PathResolver, Purpose};
use super::staged::{needs_in_place_write, overwrite};
use super::temp_journal::is_temporary;
use crate::state_file;

const EXTENSION: &str = "journal";

/// One file's change. All paths are real ones.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Step {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) target: Vec<u8>,
    /// Path of the new content; empty if the file is deleted.
    #[prost(bytes = "vec", tag = "2")]
    pub(super) staged: Vec<u8>,
    /// Path of the old content; empty if there was none.
    #[prost(bytes = "vec", tag = "3")]
    pub(super) kept: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(bool, tag = "1")]
    rolled_back: bool,
    #[prost(message, repeated, tag = "2")]
    steps: Vec<Step>,
}

/// A journal, which exists until it is ended.
pub(super) struct Journal {
    path: PathBuf,
    record: Record,
}

impl Journal {
    /// Records the steps. From now on they will be completed, even after a crash.
    pub(super) fn begin(name: &OsStr, steps: Vec<Step>, resolver: &PathResolver) -> io::Result<Self> {
        let path = directory(resolver)?.join(name).with_extension(EXTENSION);
        let journal = Self { path, record: Record { rolled_back: false, steps } };
        journal.save()?;
        Ok(journal)
    }

    /// Records that the steps are rolled back.
    pub(super) fn roll_back(&mut self) -> io::Result<()> {
        self.record.rolled_back = true;
        self.save()
    }

    pub(super) fn end(self) -> io::Result<()> {
        fs::remove_file(self.path)
    }

    /// Replaces the saved record atomically.
    fn save(&self) -> io::Result<()> {
        state_file::save(&self.path, &self.record.encode_to_vec())
    }
}

/// Returns the directory of journals, and of contents that cannot be staged beside their files. Private to the guest's user.
fn directory(resolver: &PathResolver) -> io::Result<PathBuf> {
    let dir = resolver.state_dir().join("edits");
    DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
    Ok(dir)
}

/// Opens [`directory`].
pub(super) fn open_directory(resolver: &PathResolver) -> io::Result<Arc<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(Arc::new(rustix::fs::open(directory(resolver)?, flags, Mode::empty())?))
}

/// Completes or rolls back what an earlier guest did not end.
pub(super) fn recover(resolver: &PathResolver) {
    recover_watched(resolver, &mut || ());
}

pub(super) fn recover_watched(resolver: &PathResolver, step_done: &mut dyn FnMut()) {
    let Ok(entries) = fs::read_dir(resolver.state_dir().join("edits")) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let is_journal = path.extension() == Some(OsStr::new(EXTENSION));
        let record = is_journal.then(|| state_file::read(&path, limits::MAX_MESSAGE_BYTES as u64));
        if let Some(record) = record.and_then(|bytes| Record::decode(&*bytes.ok()?).ok()) {
            let mut journal = Journal { path: path.clone(), record };
            if journal.record.rolled_back || journal.redo(resolver, step_done).is_err() {
                let _ = journal.roll_back();
                journal.undo(resolver, step_done);
            }
        }
        // Recovery is attempted once: later, other calls may have changed the files.
        let _ = fs::remove_file(path);
        step_done();
    }
}

impl Journal {
    fn redo(&self, resolver: &PathResolver, step_done: &mut dyn FnMut()) -> Result<(), Failure> {
        for step in &self.record.steps {
            let target = location(&step.target, resolver)?;
            if step.staged.is_empty() {
                remove(&target)?;
            } else {
                rename_if_present(&prepared(&step.staged, resolver)?, &target)?;
            }
            step_done();
        }
        Ok(())
    }

    /// Undoes as many steps as possible.
    fn undo(&self, resolver: &PathResolver, step_done: &mut dyn FnMut()) {
        for step in &self.record.steps {
            let undo = || {
                let target = location(&step.target, resolver)?;
                if !step.kept.is_empty() {
                    rename_if_present(&prepared(&step.kept, resolver)?, &target)
                } else if prepared(&step.staged, resolver)?.stat_now()?.is_none() {
                    remove(&target) // the new content was renamed already
                } else {
                    Ok(())
                }
            };
            let _: Result<(), Failure> = undo();
            step_done();
        }
    }
}

fn location(path: &[u8], resolver: &PathResolver) -> Result<Location, Failure> {
    resolver.resolve_own_nofollow(Path::new(OsStr::from_bytes(path)).to_owned(), Purpose::WRITE)
}

/// Resolves prepared content, which can be in the state directory and so outside the policy's roots.
fn prepared(path: &[u8], resolver: &PathResolver) -> Result<Location, Failure> {
    let location = location(path, &resolver.with_rules(Arc::default()))?;
    if is_temporary(location.name()) { Ok(location) } else { Err(location.refused(Errno::NOENT)) }
}

fn remove(target: &Location) -> Result<(), Failure> {
    if target.stat_now()?.is_some() {
        let removed = rustix::fs::unlinkat(target.dir(), target.name(), AtFlags::empty());
        removed.map_err(|errno| target.refused(errno))?;
    }
    Ok(())
}

/// Renames a content to the target, unless that was done already.
fn rename_if_present(content: &Location, target: &Location) -> Result<(), Failure> {
    if content.stat_now()?.is_none() {
        return Ok(());
    }
    match rustix::fs::renameat(content.dir(), content.name(), target.dir(), target.name()) {
        Err(errno) if needs_in_place_write(&errno.into()) => {
            let (file, _) = content.reopen_regular()?;
            overwrite(target, &file).map_err(|error| target.refused(error))
        }
        renamed => renamed.map_err(|errno| target.refused(errno)),
    }
}
