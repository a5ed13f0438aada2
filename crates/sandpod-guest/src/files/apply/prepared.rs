//! The prepared change of one file.

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
use crate::files::file_locks::FileLocks;
use crate::files::file_stat::FileStat;
use crate::files::journal::Step;
use crate::files::resolver::{Location, PathResolver};
use crate::files::staged::{Staged, needs_in_place_write, overwrite};
use crate::files::temp_journal::Temporary;

/// A change that is complete but for the rename.
pub(super) struct Prepared {
    location: Arc<Location>,
    /// `None`: the file is deleted.
    new: Option<Staged>,
    old: Option<Temporary>,
    /// Hash of the content that was read, if the change depends on it.
    read: Option<[u8; 32]>,
    /// Whether the file did not exist and the change depends on that.
    was_missing: bool,
    done: AppliedChange,
}

impl Prepared {
    pub(super) fn new(
        change: &FileChange,
        location: Arc<Location>,
        resolver: &PathResolver,
        fallback_dir: &Arc<OwnedFd>,
    ) -> Result<Self, Failure> {
        let done = AppliedChange { path: change.path.clone(), atomic: true, ..AppliedChange::default() };
        let mut prepared = Self { location, new: None, old: None, read: None, was_missing: false, done };
        let found = prepared.location.stat_now()?;
        prepared.expect(change.expected.as_ref(), found)?;
        let content = match &change.change {
            Some(Change::Content(content)) => Some(content.clone()),
            Some(Change::Replacements(all)) => Some(prepared.replace(all)?),
            _ => {
                check_deletable(&prepared.location, found)?;
                None
            }
        };
        prepared.new = content.map(|content| prepared.stage(&content, resolver, fallback_dir)).transpose()?;
        prepared.old =
            found.map(|found| keep(&prepared.location, found, resolver, fallback_dir)).transpose()?;
        Ok(prepared)
    }

    /// Returns the path as the caller named it.
    pub(super) fn path(&self) -> &str {
        &self.done.path
    }

    /// Returns a name that is unique among all sets of changes.
    pub(super) fn name(&self) -> &OsStr {
        let new = self.new.as_ref().and_then(Staged::temporary);
        new.or(self.old.as_ref()).map_or(self.location.name(), Temporary::name)
    }

    fn expect(&mut self, expected: Option<&Expected>, found: Option<FileStat>) -> Result<(), Failure> {
        match expected {
            Some(Expected::Sha256(sha256)) => {
                let read = hash(&self.location)?;
                if read != **sha256 {
                    return Err(changed(&self.location));
                }
                self.read = Some(read);
            }
            Some(Expected::Missing(true)) if found.is_some() => return Err(exists(&self.location)),
            Some(Expected::Missing(missing)) => self.was_missing = *missing,
            None => {}
        }
        Ok(())
    }

    /// Returns the file's text after all replacements, which are made in order.
    fn replace(&mut self, all: &Replacements) -> Result<Bytes, Failure> {
        let mut text = edit::read_text(&self.location)?;
        self.read = Some(Sha256::digest(&text).into());
        for replacement in &all.replacements {
            let replaced = sandpod_text::edit::replace(&text, replacement);
            let (new, occurrences) = replaced.map_err(|failure| failure.at(self.path()))?;
            text = new;
            self.done.occurrences += occurrences;
        }
        Ok(text.into())
    }

    fn stage(
        &mut self,
        content: &[u8],
        resolver: &PathResolver,
        fallback_dir: &Arc<OwnedFd>,
    ) -> Result<Staged, Failure> {
        let mut staged = Staged::named(self.location.clone(), &resolver.temp_journal, fallback_dir)?;
        staged.append(content)?;
        staged.apply_owner_and_mode()?; // now, because recovery after a crash cannot do it
        self.done.sha256 = Sha256::digest(content).to_vec().into();
        Ok(staged)
    }

    /// Checks that the file was not changed since it was read: commands take no locks.
    pub(super) fn check_unchanged(&self) -> Result<(), Failure> {
        match &self.read {
            Some(read) if hash(&self.location)? != *read => Err(changed(&self.location)),
            None if self.was_missing && self.location.stat_now()?.is_some() => Err(exists(&self.location)),
            _ => Ok(()),
        }
    }

    /// Returns the step for the journal.
    pub(super) fn step(&self) -> Result<Step, Failure> {
        let path = |temporary: Option<&Temporary>| {
            let path = temporary.map(Temporary::real_path).transpose();
            let path = path.map_err(|errno| self.location.refused(errno))?;
            Ok::<_, Failure>(path.map(|path| path.as_os_str().as_bytes().to_vec()).unwrap_or_default())
        };
        let target = self.location.real_path()?.as_os_str().as_bytes().to_vec();
        let staged = path(self.new.as_ref().and_then(Staged::temporary))?;
        Ok(Step { target, staged, kept: path(self.old.as_ref())? })
    }

    /// Makes the change.
    pub(super) fn commit(&mut self, locks: &FileLocks) -> Result<AppliedChange, Failure> {
        if let Some(staged) = &mut self.new {
            let rename = |temporary: &mut Temporary, location: &Location| {
                temporary.rename(location.dir(), location.name())
            };
            self.done.atomic = staged.commit_by(locks, rename)?;
        } else {
            unlink(&self.location)?;
        }
        Ok(self.done.clone())
    }

    /// Restores the old content.
    pub(super) fn undo(&mut self) -> Result<(), Failure> {
        let location = &*self.location;
        match (&mut self.old, self.new.as_ref().and_then(Staged::temporary)) {
            (Some(old), _) => match old.rename(location.dir(), location.name()) {
                Err(errno) if needs_in_place_write(&errno.into()) => old
                    .open()
                    .and_then(|file| overwrite(location, &file))
                    .map_err(|error| location.refused(error)),
                renamed => renamed.map_err(|errno| location.refused(errno)),
            },
            (None, Some(new)) if new.is_there() => Ok(()), // it was never renamed
            (None, _) => unlink(location),
        }
    }
}

fn unlink(location: &Location) -> Result<(), Failure> {
    let removed = rustix::fs::unlinkat(location.dir(), location.name(), AtFlags::empty());
    removed.map_err(|errno| location.refused(errno))
}

fn check_deletable(location: &Location, found: Option<FileStat>) -> Result<(), Failure> {
    match found {
        None => Err(location.refused(Errno::NOENT)),
        Some(found) if found.is_link() => Ok(()),
        Some(found) => found.check_regular(location.path()),
    }
}

/// Preserves a file's content by a further hard link, or by a copy in the state directory if the file can only be written
/// in place.
fn keep(
    location: &Location,
    found: FileStat,
    resolver: &PathResolver,
    fallback_dir: &Arc<OwnedFd>,
) -> Result<Temporary, Failure> {
    let named = || {
        let temporary = Temporary::new(location.dir(), &resolver.temp_journal)?;
        rustix::fs::linkat(
            location.dir(),
            location.name(),
            temporary.dir(),
            temporary.name(),
            AtFlags::empty(),
        )?;
        Ok::<_, Errno>(temporary)
    };
    // In a sticky directory such as /tmp, files of other users cannot be replaced.
    let dir = FileStat::from(rustix::fs::fstat(location.dir()).map_err(|errno| location.refused(errno))?);
    let is_foreign = dir.mode & 0o1000 != 0 && found.uid != rustix::process::geteuid().as_raw();
    if !is_foreign && let Ok(temporary) = named() {
        return Ok(temporary);
    }
    let (file, stat) = location.reopen_regular()?;
    let copy = || {
        let temporary = Temporary::new(fallback_dir, &resolver.temp_journal)?;
        let mut copy = temporary.create(stat.mode)?;
        io::copy(&mut &file, &mut copy)?;
        Ok::<_, io::Error>(temporary)
    };
    copy().map_err(|error| location.refused(error))
}

fn hash(location: &Location) -> Result<[u8; 32], Failure> {
    let (mut file, _) = location.reopen_regular()?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match io::Read::read(&mut file, &mut buffer).map_err(|error| location.refused(error))? {
            0 => return Ok(hash.finalize().into()),
            read => hash.update(&buffer[..read]),
        }
    }
}

fn changed(location: &Location) -> Failure {
    let path = location.path().to_string_lossy();
    let message = format!("'{path}' has other content than expected: read it again and repeat the changes");
    Failure::new(ErrorCode::Changed, message).at(path)
}

fn exists(location: &Location) -> Failure {
    let path = location.path().to_string_lossy();
    let message = format!("'{path}' exists, but was expected not to: read it and repeat the changes");
    Failure::new(ErrorCode::Exists, message).at(path)
}
