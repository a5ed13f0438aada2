//! Changing many files, all or none.
//!
//! First everything is prepared beside the files: what they will hold, and what they hold now. Then a
//! [`Journal`] promises it, and the prepared contents take their names. A step that fails turns the set back;
//! a guest that is killed leaves the rest to the next one.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::AtFlags;
use rustix::io::Errno;
use sandpod_protocol::v1::file_change::{Change, Expected};
use sandpod_protocol::v1::{AppliedChange, ApplyEditsRequest, ApplyEditsResponse, ErrorCode, FileChange};
use sandpod_protocol::{Failure, limits};
use sha2::{Digest as _, Sha256};

use super::edit;
use super::facts::Facts;
use super::journal::{self, Journal, Step};
use super::notes::Temporary;
use super::place::{Place, Purpose, Reach};
use super::staged::{Staged, is_closed, overwrite};
use super::turns::{self, Turn};

pub(super) fn apply(request: &ApplyEditsRequest, reach: &Reach) -> Result<ApplyEditsResponse, Failure> {
    apply_watched(request, reach, &mut || ())
}

/// Applies, and calls `step_done` after each step.
fn apply_watched(
    request: &ApplyEditsRequest,
    reach: &Reach,
    step_done: &mut dyn FnMut(),
) -> Result<ApplyEditsResponse, Failure> {
    request
        .changes
        .iter()
        .try_for_each(|change| check(change).map_err(|failure| failure.at(&change.path)))?;
    if request.changes.len() > limits::MAX_CHANGES {
        let message =
            format!("more than {} files can't be changed at once: use more calls", limits::MAX_CHANGES);
        return Err(Failure::new(ErrorCode::TooLarge, message));
    }
    let mut made = Vec::new();
    let applied = apply_in(request, reach, &mut made, step_done);
    if applied.is_err() {
        // Deepest first; one that others use meanwhile is not empty and stays.
        made.iter().rev().for_each(|dir| drop(fs::remove_dir(dir)));
    }
    applied
}

/// Applies; `made` are the directories that were not there before.
fn apply_in(
    request: &ApplyEditsRequest,
    reach: &Reach,
    made: &mut Vec<PathBuf>,
    step_done: &mut dyn FnMut(),
) -> Result<ApplyEditsResponse, Failure> {
    let places = places(&request.changes, reach, made)?;
    let turn = turns::take(places.iter().map(|place| &**place))?;
    let spare = journal::open_directory(reach).map_err(|error| unkept(&error))?;
    let mut prepared = Vec::new();
    for (change, place) in request.changes.iter().zip(&places) {
        prepared.push(Prepared::new(change, place.clone(), reach, &spare)?);
        step_done();
    }
    prepared.iter().try_for_each(Prepared::check_unchanged)?;
    let Some(first) = prepared.first() else { return Ok(ApplyEditsResponse::default()) };
    let steps = prepared.iter().map(Prepared::step).collect::<Result<_, _>>()?;
    let journal = Journal::begin(first.name(), steps, reach).map_err(|error| unkept(&error))?;
    step_done();
    commit(prepared, journal, &turn, step_done)
}

fn commit(
    mut prepared: Vec<Prepared>,
    journal: Journal,
    turn: &Turn,
    step_done: &mut dyn FnMut(),
) -> Result<ApplyEditsResponse, Failure> {
    let mut applied = Vec::new();
    for change in 0..prepared.len() {
        match prepared[change].commit(turn) {
            Ok(done) => applied.push(done),
            Err(failure) => return Err(turn_back(failure, &mut prepared[..=change], journal, step_done)),
        }
        step_done();
    }
    // What was kept goes when the journal does not need it any more.
    journal.end().map_err(|error| unkept(&error))?;
    step_done();
    Ok(ApplyEditsResponse { applied })
}

/// Undoes what was done when the last of these failed; says so where even that can't be done.
fn turn_back(
    failure: Failure,
    done: &mut [Prepared],
    mut journal: Journal,
    step_done: &mut dyn FnMut(),
) -> Failure {
    if let Err(error) = journal.turn_back() {
        return unkept(&error);
    }
    step_done();
    let mut message = failure.message().to_owned();
    for change in done.iter_mut().rev() {
        if let Err(undone) = change.undo() {
            message += &format!("; '{}' could not be put back: {undone}", change.done.path);
        }
        step_done();
    }
    let ended = journal.end();
    ended.map_or_else(
        |error| unkept(&error),
        |()| Failure::new(failure.code(), message).at(failure.path().unwrap_or_default()),
    )
}

fn unkept(error: &io::Error) -> Failure {
    let failure = Failure::from(io::Error::from(error.kind()));
    let message = format!("the changes can't be kept track of in the guest's state directory: {error}");
    Failure::new(failure.code(), message)
}

/// Refuses a change that can't be meant.
fn check(change: &FileChange) -> Result<(), Failure> {
    let wrong = |message: &str| Err(Failure::new(ErrorCode::InvalidArgument, message));
    match &change.change {
        None => wrong("a change needs a content, replacements or a deletion"),
        Some(Change::Delete(false)) => wrong("a change that does not delete needs a content or replacements"),
        Some(Change::Replacements(all)) if all.replacements.is_empty() => {
            wrong("there is nothing to replace")
        }
        Some(Change::Replacements(all)) => all.replacements.iter().try_for_each(edit::check),
        Some(Change::Content(_) | Change::Delete(true)) => Ok(()),
    }
}

/// The places of all changes. Directories above new files are made.
fn places(
    changes: &[FileChange],
    reach: &Reach,
    made: &mut Vec<PathBuf>,
) -> Result<Vec<Arc<Place>>, Failure> {
    let (mut places, mut known) = (Vec::new(), HashSet::new());
    for change in changes {
        let place = match change.change {
            Some(Change::Delete(_)) => reach.at(&change.path, Purpose::DELETE)?,
            Some(Change::Content(_)) => {
                made.extend(missing_above(&change.path));
                reach.made(&change.path, Purpose::WRITE)?
            }
            _ => reach.behind(&change.path, Purpose::EDIT)?,
        };
        if !known.insert(place.real_path()?) {
            let message = format!("'{}' is changed twice: put all of its changes into one", change.path);
            return Err(Failure::new(ErrorCode::InvalidArgument, message).at(&change.path));
        }
        places.push(Arc::new(place));
    }
    Ok(places)
}

/// The directories above a path that are not there, from the top.
fn missing_above(path: &str) -> Vec<PathBuf> {
    let above = Path::new(path).ancestors().skip(1);
    let mut missing: Vec<PathBuf> =
        above.take_while(|dir| fs::symlink_metadata(dir).is_err()).map(Path::to_owned).collect();
    missing.reverse();
    missing
}

/// A change of which everything is there but its name.
struct Prepared {
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
    fn new(
        change: &FileChange,
        place: Arc<Place>,
        reach: &Reach,
        spare: &Arc<OwnedFd>,
    ) -> Result<Self, Failure> {
        let found = place.now()?;
        let mut read = match &change.expected {
            Some(Expected::Sha256(expected)) => Some(check_hash(&place, expected)?),
            Some(Expected::Missing(true)) if found.is_some() => return Err(exists(&place)),
            Some(Expected::Missing(_)) | None => None,
        };
        let mut done = AppliedChange { path: change.path.clone(), atomic: true, ..AppliedChange::default() };
        let content = match &change.change {
            Some(Change::Content(content)) => Some(content.clone()),
            Some(Change::Replacements(all)) => {
                let mut text = edit::read_text(&place)?;
                read = Some(Sha256::digest(&text).into());
                for replacement in &all.replacements {
                    let (new, occurrences) =
                        edit::replace(&text, replacement).map_err(|failure| failure.at(&change.path))?;
                    text = new;
                    done.occurrences += occurrences;
                }
                Some(text.into())
            }
            _ => {
                check_deletable(&place, found)?;
                None
            }
        };
        let new = match content {
            Some(content) => {
                let mut staged = Staged::named(place.clone(), &reach.notes, spare)?;
                staged.append(&content)?;
                staged.settle()?; // now: the next guest does not know how
                done.sha256 = Sha256::digest(&content).to_vec().into();
                Some(staged)
            }
            None => None,
        };
        let old = found.map(|found| keep(&place, found, reach, spare)).transpose()?;
        let was_missing = matches!(change.expected, Some(Expected::Missing(true)));
        Ok(Self { place, new, old, read, was_missing, done })
    }

    /// A name that no other set has.
    fn name(&self) -> &std::ffi::OsStr {
        let new = self.new.as_ref().and_then(Staged::temporary);
        new.or(self.old.as_ref()).map_or(self.place.name(), Temporary::name)
    }

    /// Commands take no turns: what one changed since it was read is found here.
    fn check_unchanged(&self) -> Result<(), Failure> {
        match &self.read {
            Some(read) if hash(&self.place)? != *read => Err(changed(&self.place)),
            None if self.was_missing && self.place.now()?.is_some() => Err(exists(&self.place)),
            _ => Ok(()),
        }
    }

    fn step(&self) -> Result<Step, Failure> {
        let path = |temporary: Option<&Temporary>| {
            let path = temporary.map(Temporary::real_path).transpose();
            let path = path.map_err(|errno| self.place.refused(errno))?;
            Ok::<_, Failure>(path.map(|path| path.as_os_str().as_bytes().to_vec()).unwrap_or_default())
        };
        let target = self.place.real_path()?.as_os_str().as_bytes().to_vec();
        let staged = path(self.new.as_ref().and_then(Staged::temporary))?;
        Ok(Step { target, staged, kept: path(self.old.as_ref())? })
    }

    fn commit(&mut self, turn: &Turn) -> Result<AppliedChange, Failure> {
        match &mut self.new {
            Some(staged) => self.done.atomic = staged.commit_by(turn, rename)?,
            None => {
                let removed = rustix::fs::unlinkat(self.place.dir(), self.place.name(), AtFlags::empty());
                removed.map_err(|errno| self.place.refused(errno))?;
            }
        }
        Ok(self.done.clone())
    }

    /// Makes the old content the file's again.
    fn undo(&mut self) -> Result<(), Failure> {
        let place = &*self.place;
        match (&mut self.old, self.new.as_ref().and_then(Staged::temporary)) {
            (Some(old), _) => match old.rename(place.dir(), place.name()) {
                Err(errno) if is_closed(&errno.into()) => {
                    old.open().and_then(|file| overwrite(place, &file)).map_err(|error| place.refused(error))
                }
                renamed => renamed.map_err(|errno| place.refused(errno)),
            },
            (None, Some(new)) if new.is_there() => Ok(()), // it never got its name
            (None, _) => rustix::fs::unlinkat(place.dir(), place.name(), AtFlags::empty())
                .map_err(|errno| place.refused(errno)),
        }
    }
}

fn rename(temporary: &mut Temporary, place: &Place) -> rustix::io::Result<()> {
    temporary.rename(place.dir(), place.name())
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

fn check_hash(place: &Place, expected: &[u8]) -> Result<[u8; 32], Failure> {
    let found = hash(place)?;
    if found == *expected { Ok(found) } else { Err(changed(place)) }
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

#[cfg(test)]
mod tests;
