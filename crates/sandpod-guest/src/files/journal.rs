//! What a set of changes is about to do, where the next guest finds it.
//!
//! A journal is there from the moment when everything is prepared until everything is done. So a guest that
//! is killed before it has changed nothing, and one that is killed later has the next one go on: forward, or
//! back if the set turned back because a step failed. Each step can be done again. It is about the guest's own
//! end; it is not written through to the disk, so a machine that loses its power can lose it.

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

use super::notes::is_temporary;
use super::place::{Place, Purpose, Reach};
use super::staged::{is_closed, overwrite};
use crate::saved;

const ENDING: &str = "journal";

/// One file's change. All paths are real ones.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Step {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) target: Vec<u8>,
    /// The new content; empty if the file is deleted.
    #[prost(bytes = "vec", tag = "2")]
    pub(super) staged: Vec<u8>,
    /// The old content; empty if there was none.
    #[prost(bytes = "vec", tag = "3")]
    pub(super) kept: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(bool, tag = "1")]
    back: bool,
    #[prost(message, repeated, tag = "2")]
    steps: Vec<Step>,
}

/// A journal that is there until it is ended.
pub(super) struct Journal {
    path: PathBuf,
    record: Record,
}

impl Journal {
    /// From now on the steps will be done, whatever happens to this guest.
    pub(super) fn begin(name: &OsStr, steps: Vec<Step>, reach: &Reach) -> io::Result<Self> {
        let path = directory(reach)?.join(name).with_extension(ENDING);
        let journal = Self { path, record: Record { back: false, steps } };
        journal.save()?;
        Ok(journal)
    }

    /// From now on they will be undone.
    pub(super) fn turn_back(&mut self) -> io::Result<()> {
        self.record.back = true;
        self.save()
    }

    pub(super) fn end(self) -> io::Result<()> {
        fs::remove_file(self.path)
    }

    /// Replaces what was saved in one step.
    fn save(&self) -> io::Result<()> {
        saved::save(&self.path, &self.record.encode_to_vec())
    }
}

/// Where journals are, and contents for which there is no room beside their files. Only for the guest's user.
fn directory(reach: &Reach) -> io::Result<PathBuf> {
    let dir = reach.state_dir().join("edits");
    DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
    Ok(dir)
}

/// [`directory`], opened.
pub(super) fn open_directory(reach: &Reach) -> io::Result<Arc<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(Arc::new(rustix::fs::open(directory(reach)?, flags, Mode::empty())?))
}

/// Goes on with what a guest before did not end.
pub(super) fn repair(reach: &Reach) {
    repair_watched(reach, &mut || ());
}

pub(super) fn repair_watched(reach: &Reach, step_done: &mut dyn FnMut()) {
    let Ok(entries) = fs::read_dir(reach.state_dir().join("edits")) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let is_journal = path.extension() == Some(OsStr::new(ENDING));
        let record = is_journal.then(|| saved::read(&path, limits::MAX_MESSAGE_BYTES as u64));
        if let Some(record) = record.and_then(|bytes| Record::decode(&*bytes.ok()?).ok()) {
            let mut journal = Journal { path: path.clone(), record };
            if journal.record.back || journal.go_forward(reach, step_done).is_err() {
                let _ = journal.turn_back();
                journal.go_back(reach, step_done);
            }
        }
        // Once only: what could not be put in order then is not touched after others have worked on it.
        let _ = fs::remove_file(path);
        step_done();
    }
}

impl Journal {
    fn go_forward(&self, reach: &Reach, step_done: &mut dyn FnMut()) -> Result<(), Failure> {
        for step in &self.record.steps {
            let target = place(&step.target, reach)?;
            if step.staged.is_empty() {
                remove(&target)?;
            } else {
                put_if_there(&prepared(&step.staged, reach)?, &target)?;
            }
            step_done();
        }
        Ok(())
    }

    /// Undoes as much as can be.
    fn go_back(&self, reach: &Reach, step_done: &mut dyn FnMut()) {
        for step in &self.record.steps {
            let undo = || {
                let target = place(&step.target, reach)?;
                if !step.kept.is_empty() {
                    put_if_there(&prepared(&step.kept, reach)?, &target)
                } else if prepared(&step.staged, reach)?.now()?.is_none() {
                    remove(&target) // the new content got there
                } else {
                    Ok(())
                }
            };
            let _: Result<(), Failure> = undo();
            step_done();
        }
    }
}

fn place(path: &[u8], reach: &Reach) -> Result<Place, Failure> {
    reach.place_at(Path::new(OsStr::from_bytes(path)).to_owned(), Purpose::WRITE)
}

/// A content that was prepared: it can be in the state directory, which no policy is about.
fn prepared(path: &[u8], reach: &Reach) -> Result<Place, Failure> {
    let place = place(path, &reach.by(Arc::default()))?;
    if is_temporary(place.name()) { Ok(place) } else { Err(place.refused(Errno::NOENT)) }
}

fn remove(target: &Place) -> Result<(), Failure> {
    if target.now()?.is_some() {
        let removed = rustix::fs::unlinkat(target.dir(), target.name(), AtFlags::empty());
        removed.map_err(|errno| target.refused(errno))?;
    }
    Ok(())
}

/// Makes a content the target's, unless that was done already.
fn put_if_there(content: &Place, target: &Place) -> Result<(), Failure> {
    if content.now()?.is_none() {
        return Ok(());
    }
    match rustix::fs::renameat(content.dir(), content.name(), target.dir(), target.name()) {
        Err(errno) if is_closed(&errno.into()) => {
            let (file, _) = content.reopen_regular()?;
            overwrite(target, &file).map_err(|error| target.refused(error))
        }
        renamed => renamed.map_err(|errno| target.refused(errno)),
    }
}
