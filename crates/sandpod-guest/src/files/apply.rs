//! Changes many files atomically: all or none.
//!
//! First everything is prepared beside the files: their new contents, and links to or copies of their old ones. Then
//! a [`Journal`] records the steps, and the prepared contents take their names. A step that fails rolls all changes
//! back; after a crash of the guest, the next one completes them.

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

use super::file_locks::{self, FileLocks};
use super::journal::{self, Journal};
use super::resolver::{Location, PathResolver, Purpose};
use prepared::Prepared;

pub(super) fn apply(
    request: &ApplyEditsRequest,
    resolver: &PathResolver,
) -> Result<ApplyEditsResponse, Failure> {
    apply_watched(request, resolver, &mut || ())
}

/// Applies changes, and calls `step_done` after each step.
fn apply_watched(
    request: &ApplyEditsRequest,
    resolver: &PathResolver,
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
    let mut created = Vec::new();
    let applied = apply_in(request, resolver, &mut created, step_done);
    if applied.is_err() {
        // Deepest first. A directory that is used meanwhile is not empty and stays.
        created.iter().rev().for_each(|dir| drop(fs::remove_dir(dir)));
    }
    applied
}

/// Applies changes. `created` receives the directories that were made.
fn apply_in(
    request: &ApplyEditsRequest,
    resolver: &PathResolver,
    created: &mut Vec<PathBuf>,
    step_done: &mut dyn FnMut(),
) -> Result<ApplyEditsResponse, Failure> {
    let locations = locations(&request.changes, resolver, created)?;
    let locks = file_locks::lock(locations.iter().map(|location| &**location))?;
    let fallback_dir = journal::open_directory(resolver).map_err(|error| journal_failure(&error))?;
    let mut prepared = Vec::new();
    for (change, location) in request.changes.iter().zip(&locations) {
        prepared.push(Prepared::new(change, location.clone(), resolver, &fallback_dir)?);
        step_done();
    }
    prepared.iter().try_for_each(Prepared::check_unchanged)?;
    let Some(first) = prepared.first() else { return Ok(ApplyEditsResponse::default()) };
    let steps = prepared.iter().map(Prepared::step).collect::<Result<_, _>>()?;
    let journal = Journal::begin(first.name(), steps, resolver).map_err(|error| journal_failure(&error))?;
    step_done();
    commit(prepared, journal, &locks, step_done)
}

fn commit(
    mut prepared: Vec<Prepared>,
    journal: Journal,
    locks: &FileLocks,
    step_done: &mut dyn FnMut(),
) -> Result<ApplyEditsResponse, Failure> {
    let mut applied = Vec::new();
    for change in 0..prepared.len() {
        match prepared[change].commit(locks) {
            Ok(done) => applied.push(done),
            Err(failure) => return Err(roll_back(&failure, &mut prepared[..=change], journal, step_done)),
        }
        step_done();
    }
    // The old contents are deleted once the journal no longer needs them.
    journal.end().map_err(|error| journal_failure(&error))?;
    step_done();
    Ok(ApplyEditsResponse { applied })
}

/// Rolls back after the last of these changes failed. The returned failure also names files that cannot be restored.
fn roll_back(
    failure: &Failure,
    done: &mut [Prepared],
    mut journal: Journal,
    step_done: &mut dyn FnMut(),
) -> Failure {
    if let Err(error) = journal.roll_back() {
        return journal_failure(&error);
    }
    step_done();
    let mut message = failure.message().to_owned();
    for change in done.iter_mut().rev() {
        if let Err(undone) = change.undo() {
            let _ = write!(message, "; '{}' could not be restored: {undone}", change.path());
        }
        step_done();
    }
    match journal.end() {
        Ok(()) => Failure::new(failure.code(), message).at(failure.path().unwrap_or_default()),
        Err(error) => journal_failure(&error),
    }
}

fn journal_failure(error: &io::Error) -> Failure {
    let failure = Failure::from(io::Error::from(error.kind()));
    let message = format!("the changes cannot be recorded in the guest's state directory: {error}");
    Failure::new(failure.code(), message)
}

/// Refuses an invalid change.
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

/// Resolves the paths of all changes, and creates the directories above new files.
fn locations(
    changes: &[FileChange],
    resolver: &PathResolver,
    created: &mut Vec<PathBuf>,
) -> Result<Vec<Arc<Location>>, Failure> {
    let (mut locations, mut known) = (Vec::new(), HashSet::new());
    for change in changes {
        let location = match change.change {
            Some(Change::Delete(_)) => resolver.resolve_nofollow(&change.path, Purpose::DELETE)?,
            Some(Change::Content(_)) => {
                created.extend(missing_above(&change.path));
                resolver.resolve_for_create(&change.path, Purpose::WRITE)?
            }
            _ => resolver.resolve(&change.path, Purpose::EDIT)?,
        };
        if !known.insert(location.real_path()?) {
            let message = format!("'{}' is changed twice: put all of its changes into one", change.path);
            return Err(Failure::new(ErrorCode::InvalidArgument, message).at(&change.path));
        }
        locations.push(Arc::new(location));
    }
    Ok(locations)
}

/// Returns the missing directories above a path, from the top.
fn missing_above(path: &str) -> Vec<PathBuf> {
    let above = Path::new(path).ancestors().skip(1);
    let mut missing: Vec<PathBuf> =
        above.take_while(|dir| fs::symlink_metadata(dir).is_err()).map(Path::to_owned).collect();
    missing.reverse();
    missing
}

#[cfg(test)]
mod tests;
