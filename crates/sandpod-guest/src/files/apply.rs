//! Changing many files, all or none.
//!
//! First everything is prepared beside the files: what they will hold, and what they hold now. Then a
//! [`Journal`] promises it, and the prepared contents take their names. A step that fails turns the set back;
//! a guest that is killed leaves the rest to the next one.

mod prepared;

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandpod_protocol::v1::file_change::Change;
use sandpod_protocol::v1::{ApplyEditsRequest, ApplyEditsResponse, ErrorCode, FileChange};
use sandpod_protocol::{Failure, limits};

use super::journal::{self, Journal};
use super::place::{Place, Purpose, Reach};
use super::turns::{self, Turn};
use prepared::Prepared;

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
            Err(failure) => return Err(turn_back(&failure, &mut prepared[..=change], journal, step_done)),
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
    failure: &Failure,
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
            let _ = write!(message, "; '{}' could not be put back: {undone}", change.path());
        }
        step_done();
    }
    match journal.end() {
        Ok(()) => Failure::new(failure.code(), message).at(failure.path().unwrap_or_default()),
        Err(error) => unkept(&error),
    }
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
        Some(Change::Replacements(all)) => all.replacements.iter().try_for_each(sandpod_text::edit::check),
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

#[cfg(test)]
mod tests;
