//! One file's change, ready to be made.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::AtFlags;
use rustix::io::Errno;
use sandpod_protocol::Failure;
use sandpod_protocol::v1::file_change::{Change, Expected};
use sandpod_protocol::v1::{AppliedChange, ErrorCode, FileChange, Replacements};
use sha2::{Digest as _, Sha256};

use crate::files::edit;
use crate::files::facts::Facts;
use crate::files::journal::Step;
use crate::files::notes::Temporary;
use crate::files::place::{Place, Reach};
use crate::files::staged::{Staged, is_closed, overwrite};
use crate::files::turns::Turn;

/// A change of which everything is there but its name.
pub(super) struct Prepared {
    place: Arc<Place>,
    /// None: it is deleted.
    new: Option<Staged>,
    old: Option<Temporary>,
    /// What was read, if something depends on it.
    read: Option<[u8; 32]>,
    /// There was nothing, and something depends on that.
    was_missing: bool,
    done: AppliedChange,
}

impl Prepared {
    pub(super) fn new(
        change: &FileChange,
        place: Arc<Place>,
        reach: &Reach,
        spare: &Arc<OwnedFd>,
    ) -> Result<Self, Failure> {
        let done = AppliedChange { path: change.path.clone(), atomic: true, ..AppliedChange::default() };
        let mut prepared = Self { place, new: None, old: None, read: None, was_missing: false, done };
        let found = prepared.place.now()?;
        prepared.expect(change.expected.as_ref(), found)?;
        let content = match &change.change {
            Some(Change::Content(content)) => Some(content.clone()),
            Some(Change::Replacements(all)) => Some(prepared.replace(all)?),
            _ => {
                check_deletable(&prepared.place, found)?;
                None
            }
        };
        prepared.new = content.map(|content| prepared.stage(&content, reach, spare)).transpose()?;
        prepared.old = found.map(|found| keep(&prepared.place, found, reach, spare)).transpose()?;
        Ok(prepared)
    }

    /// As the caller named it.
    pub(super) fn path(&self) -> &str {
        &self.done.path
    }

    /// A name that no other set has.
    pub(super) fn name(&self) -> &OsStr {
        let new = self.new.as_ref().and_then(Staged::temporary);
        new.or(self.old.as_ref()).map_or(self.place.name(), Temporary::name)
    }

    fn expect(&mut self, expected: Option<&Expected>, found: Option<Facts>) -> Result<(), Failure> {
        match expected {
            Some(Expected::Sha256(sha256)) => {
                let read = hash(&self.place)?;
                if read != **sha256 {
                    return Err(changed(&self.place));
                }
                self.read = Some(read);
            }
            Some(Expected::Missing(true)) if found.is_some() => return Err(exists(&self.place)),
            Some(Expected::Missing(missing)) => self.was_missing = *missing,
            None => {}
        }
        Ok(())
    }

    /// The file's text with the replacements made, one after the other.
    fn replace(&mut self, all: &Replacements) -> Result<Bytes, Failure> {
        let mut text = edit::read_text(&self.place)?;
        self.read = Some(Sha256::digest(&text).into());
        for replacement in &all.replacements {
            let replaced = sandpod_text::edit::replace(&text, replacement);
            let (new, occurrences) = replaced.map_err(|failure| failure.at(self.path()))?;
            text = new;
            self.done.occurrences += occurrences;
        }
        Ok(text.into())
    }

    fn stage(&mut self, content: &[u8], reach: &Reach, spare: &Arc<OwnedFd>) -> Result<Staged, Failure> {
        let mut staged = Staged::named(self.place.clone(), &reach.notes, spare)?;
        staged.append(content)?;
        staged.settle()?; // now: the next guest does not know how
        self.done.sha256 = Sha256::digest(content).to_vec().into();
        Ok(staged)
    }

    /// Commands take no turns: what one changed since it was read is found here.
    pub(super) fn check_unchanged(&self) -> Result<(), Failure> {
        match &self.read {
            Some(read) if hash(&self.place)? != *read => Err(changed(&self.place)),
            None if self.was_missing && self.place.now()?.is_some() => Err(exists(&self.place)),
            _ => Ok(()),
        }
    }

    /// What the journal says of it.
    pub(super) fn step(&self) -> Result<Step, Failure> {
        let path = |temporary: Option<&Temporary>| {
            let path = temporary.map(Temporary::real_path).transpose();
            let path = path.map_err(|errno| self.place.refused(errno))?;
            Ok::<_, Failure>(path.map(|path| path.as_os_str().as_bytes().to_vec()).unwrap_or_default())
        };
        let target = self.place.real_path()?.as_os_str().as_bytes().to_vec();
        let staged = path(self.new.as_ref().and_then(Staged::temporary))?;
        Ok(Step { target, staged, kept: path(self.old.as_ref())? })
    }

    /// Makes the change.
    pub(super) fn commit(&mut self, turn: &Turn) -> Result<AppliedChange, Failure> {
        if let Some(staged) = &mut self.new {
            let rename =
                |temporary: &mut Temporary, place: &Place| temporary.rename(place.dir(), place.name());
            self.done.atomic = staged.commit_by(turn, rename)?;
        } else {
            unlink(&self.place)?;
        }
        Ok(self.done.clone())
    }

    /// Makes the old content the file's again.
    pub(super) fn undo(&mut self) -> Result<(), Failure> {
        let place = &*self.place;
        match (&mut self.old, self.new.as_ref().and_then(Staged::temporary)) {
            (Some(old), _) => match old.rename(place.dir(), place.name()) {
                Err(errno) if is_closed(&errno.into()) => {
                    old.open().and_then(|file| overwrite(place, &file)).map_err(|error| place.refused(error))
                }
                renamed => renamed.map_err(|errno| place.refused(errno)),
            },
            (None, Some(new)) if new.is_there() => Ok(()), // it never got its name
            (None, _) => unlink(place),
        }
    }
}

fn unlink(place: &Place) -> Result<(), Failure> {
    let removed = rustix::fs::unlinkat(place.dir(), place.name(), AtFlags::empty());
    removed.map_err(|errno| place.refused(errno))
}

fn check_deletable(place: &Place, found: Option<Facts>) -> Result<(), Failure> {
    match found {
        None => Err(place.refused(Errno::NOENT)),
        Some(found) if found.is_link() => Ok(()),
        Some(found) => found.check_regular(place.path()),
    }
}

/// Keeps what a file holds now: by a further name, or where the file can only be written in place, by a copy
/// in the state directory.
fn keep(place: &Place, found: Facts, reach: &Reach, spare: &Arc<OwnedFd>) -> Result<Temporary, Failure> {
    let named = || {
        let temporary = Temporary::new(place.dir(), &reach.notes)?;
        rustix::fs::linkat(place.dir(), place.name(), temporary.dir(), temporary.name(), AtFlags::empty())?;
        Ok::<_, Errno>(temporary)
    };
    // In a directory such as /tmp nobody else's file is replaced.
    let dir = Facts::from(rustix::fs::fstat(place.dir()).map_err(|errno| place.refused(errno))?);
    let is_foreign = dir.mode & 0o1000 != 0 && found.uid != rustix::process::geteuid().as_raw();
    if !is_foreign && let Ok(temporary) = named() {
        return Ok(temporary);
    }
    let (file, facts) = place.reopen_regular()?;
    let copy = || {
        let temporary = Temporary::new(spare, &reach.notes)?;
        let mut copy = temporary.create(facts.mode)?;
        io::copy(&mut &file, &mut copy)?;
        Ok::<_, io::Error>(temporary)
    };
    copy().map_err(|error| place.refused(error))
}

fn hash(place: &Place) -> Result<[u8; 32], Failure> {
    let (mut file, _) = place.reopen_regular()?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match io::Read::read(&mut file, &mut buffer).map_err(|error| place.refused(error))? {
            0 => return Ok(hash.finalize().into()),
            read => hash.update(&buffer[..read]),
        }
    }
}

fn changed(place: &Place) -> Failure {
    let path = place.path().to_string_lossy();
    let message =
        format!("'{path}' holds something else than was expected: read it again and repeat the changes");
    Failure::new(ErrorCode::Changed, message).at(path)
}

fn exists(place: &Place) -> Failure {
    let path = place.path().to_string_lossy();
    let message = format!("'{path}' is there, and was expected not to be: read it and repeat the changes");
    Failure::new(ErrorCode::Exists, message).at(path)
}
