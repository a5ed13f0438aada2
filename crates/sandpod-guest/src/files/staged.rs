//! New content that will replace a file.
//!
//! It is an unnamed file until it is complete, if the file system supports that, so that a killed guest leaves nothing
//! behind; otherwise a temporary file with a journal entry. Committing gives it the target's mode, owner and name
//! atomically: readers get the old content or the new one. Other hard links of a replaced file keep the old content,
//! as package stores that share files by hard links require.

use std::fs::{File, Permissions};
use std::io::{self, Seek as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{PermissionsExt as _, fchown};
use std::sync::Arc;

use rustix::fs::{Access, AtFlags, CWD, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use sandpod_protocol::Failure;
use sandpod_protocol::v1::{ErrorCode, WriteResponse};

use super::file_locks::{self, FileLocks};
use super::file_stat::FileStat;
use super::resolver::{Location, own_fd};
use super::temp_journal::{TempJournal, Temporary};

/// New content for a location. Dropped unless it is committed.
pub(super) struct Staged {
    location: Arc<Location>,
    file: File,
    name: Name,
    mode: Option<u32>,
    temp_journal: TempJournal,
}

enum Name {
    None,
    Temporary(Temporary),
    /// The directory is not writable: the content can only be written into the existing file.
    InPlace,
}

impl Staged {
    /// Begins new content, with `mode` or that of the file that it replaces.
    pub(super) fn new(
        location: Arc<Location>,
        temp_journal: &TempJournal,
        mode: Option<u32>,
    ) -> Result<Self, Failure> {
        Self::begin(location, temp_journal, mode, |location, temp_journal, mode| {
            let nameless = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            match rustix::fs::openat(location.dir(), ".", nameless, Mode::from_raw_mode(mode)) {
                Ok(file) => Ok((file.into(), Name::None)),
                Err(_) => named(location.dir(), temp_journal, mode),
            }
        })
    }

    /// [`new`](Self::new) with a name from the beginning, by which a journal can refer to it: in `fallback_dir` if the
    /// directory is not writable.
    pub(super) fn named(
        location: Arc<Location>,
        temp_journal: &TempJournal,
        fallback_dir: &Arc<OwnedFd>,
    ) -> Result<Self, Failure> {
        let replaces = location.stat_now()?.is_some();
        Self::begin(location, temp_journal, None, |location, temp_journal, mode| {
            match named(location.dir(), temp_journal, mode) {
                Err(error) if replaces && needs_in_place_write(&error) => {
                    named(fallback_dir, temp_journal, mode)
                }
                named => named,
            }
        })
    }

    fn begin(
        location: Arc<Location>,
        temp_journal: &TempJournal,
        mode: Option<u32>,
        create: impl FnOnce(&Location, &TempJournal, u32) -> io::Result<(File, Name)>,
    ) -> Result<Self, Failure> {
        let exists = existing(&location)?.is_some();
        // No other user may read the content before it has the mode of the file that it replaces.
        let first_mode = if exists || mode.is_some() { 0o600 } else { 0o644 };
        let (file, name) = match create(&location, temp_journal, first_mode) {
            Ok(created) => created,
            Err(error) if exists && needs_in_place_write(&error) => {
                (tempfile::tempfile().map_err(|error| location.refused(error))?, Name::InPlace)
            }
            Err(error) => return Err(location.refused(error)),
        };
        Ok(Self { location, file, name, mode, temp_journal: temp_journal.clone() })
    }

    pub(super) fn append(&mut self, content: &[u8]) -> Result<(), Failure> {
        self.file.write_all(content).map_err(|error| self.location.refused(error))
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn location(&self) -> &Location {
        &self.location
    }

    /// Returns its temporary name, or `None` if it has none.
    pub(super) fn temporary(&self) -> Option<&Temporary> {
        match &self.name {
            Name::Temporary(temporary) => Some(temporary),
            Name::None | Name::InPlace => None,
        }
    }

    /// Locks the target and commits.
    pub(super) fn lock_and_commit(self) -> Result<WriteResponse, Failure> {
        let locks = file_locks::lock([&*self.location])?;
        let atomic = self.commit(&locks)?;
        Ok(WriteResponse { atomic })
    }

    /// Makes the content the target's. Returns whether that was atomic.
    pub(super) fn commit(mut self, locks: &FileLocks) -> Result<bool, Failure> {
        self.commit_by(locks, |temporary, location| temporary.rename(location.dir(), location.name()))
    }

    pub(super) fn commit_by(
        &mut self,
        _locks: &FileLocks,
        rename: impl FnOnce(&mut Temporary, &Location) -> rustix::io::Result<()>,
    ) -> Result<bool, Failure> {
        let existing = self.apply_owner_and_mode()?;
        match self.link_or_rename(existing.is_some(), rename) {
            Ok(()) => Ok(true),
            Err(errno) if existing.is_some() && needs_in_place_write(&errno.into()) => {
                overwrite(&self.location, &self.file).map_err(|error| self.location.refused(error))?;
                Ok(false)
            }
            Err(errno) => Err(self.location.refused(errno)),
        }
    }

    /// Sets the owner and mode that the content will have. Returns the stat of the file that it replaces.
    pub(super) fn apply_owner_and_mode(&self) -> Result<Option<FileStat>, Failure> {
        let existing = existing(&self.location)?;
        if let Some(FileStat { uid, gid, .. }) = existing {
            // Only root may change the owner. It must be changed first, because that clears mode bits.
            let _ = fchown(&self.file, Some(uid), Some(gid)).or_else(|_| fchown(&self.file, None, Some(gid)));
        }
        if let Some(mode) = self.mode.or(existing.map(|existing| existing.mode)) {
            let permissions = Permissions::from_mode(mode & 0o7777);
            self.file.set_permissions(permissions).map_err(|error| self.location.refused(error))?;
        }
        Ok(existing)
    }

    fn link_or_rename(
        &mut self,
        replaces: bool,
        rename: impl FnOnce(&mut Temporary, &Location) -> rustix::io::Result<()>,
    ) -> rustix::io::Result<()> {
        if let Name::None = self.name {
            if !replaces {
                match link(&self.file, self.location.dir(), self.location.name()) {
                    Err(Errno::EXIST) => {} // created meanwhile
                    linked => return linked,
                }
            }
            let temporary = Temporary::new(self.location.dir(), &self.temp_journal)?;
            link(&self.file, temporary.dir(), temporary.name())?;
            self.name = Name::Temporary(temporary);
        }
        match &mut self.name {
            Name::Temporary(temporary) => rename(temporary, &self.location),
            Name::None | Name::InPlace => Err(Errno::XDEV),
        }
    }
}

fn named(dir: &Arc<OwnedFd>, temp_journal: &TempJournal, mode: u32) -> io::Result<(File, Name)> {
    let temporary = Temporary::new(dir, temp_journal)?;
    let file = temporary.create(mode)?;
    Ok((file, Name::Temporary(temporary)))
}

/// Links an unnamed file.
fn link(file: &File, dir: &OwnedFd, name: &std::ffi::OsStr) -> rustix::io::Result<()> {
    rustix::fs::linkat(CWD, own_fd(file.as_fd()), dir, name, AtFlags::SYMLINK_FOLLOW)
}

/// Returns the stat of the file that is replaced, if that is allowed.
fn existing(location: &Location) -> Result<Option<FileStat>, Failure> {
    let Some(stat) = location.stat_now()? else { return Ok(None) };
    if stat.is_link() {
        let path = location.path().to_string_lossy();
        let message = format!("'{path}' became a link while it was written: nothing was changed, try again");
        return Err(Failure::new(ErrorCode::Changed, message).at(path));
    }
    stat.check_regular(location.path())?;
    // A rename does not check this: it needs write permission for the directory only.
    let permitted = rustix::fs::accessat(location.dir(), location.name(), Access::WRITE_OK, AtFlags::empty());
    permitted.map_err(|errno| location.refused(errno))?;
    Ok(Some(stat))
}

/// Returns whether a file cannot be replaced but may be writable in place: a mount point, or a directory of another user.
pub(super) fn needs_in_place_write(error: &io::Error) -> bool {
    use io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::ResourceBusy
            | ErrorKind::CrossesDevices
            | ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
    )
}

/// Overwrites a file's content. Space is allocated first and the file is shortened last, so that a full disk
/// leaves it unchanged.
pub(super) fn overwrite(location: &Location, mut content: &File) -> io::Result<()> {
    let length = content.seek(io::SeekFrom::End(0))?;
    content.rewind()?;
    let mut file = File::from(location.open(OFlags::WRONLY)?);
    if length > 0
        && let Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) =
            rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, length)
    {
        return Err(errno.into());
    }
    io::copy(&mut content, &mut file)?;
    file.set_len(length)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::{env, fs};

    use super::*;
    use crate::files::resolver::{PathResolver, Purpose};
    use crate::files::testing::{disabled_features, names, text};

    const DIR: &str = "SANDPOD_KILLED_DIR";

    fn resolver(dir: &Path) -> PathResolver {
        PathResolver::new(&dir.join("state"), disabled_features())
    }

    /// The child process of the test below: it is killed after it has written a part, with and without a name.
    #[test]
    fn killed_child() {
        let Some(dir) = env::var_os(DIR) else { return };
        let (dir, resolver) = (Path::new(&dir), resolver(Path::new(&dir)));
        let location = |name: &str| {
            Arc::new(resolver.resolve_for_create(&text(&dir.join(name)), Purpose::WRITE).unwrap())
        };
        let fallback_dir = location("file").dir().clone();
        let mut nameless = Staged::new(location("file"), &resolver.temp_journal, None).unwrap();
        let mut named = Staged::named(location("file"), &resolver.temp_journal, &fallback_dir).unwrap();
        nameless.append(b"half").unwrap();
        named.append(b"half").unwrap();
        std::process::abort();
    }

    #[test]
    fn a_guest_killed_during_a_write_keeps_the_old_content() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "old").unwrap();
        let mut child = Command::new(env::current_exe().unwrap());
        child
            .args(["--exact", "files::staged::tests::killed_child"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        assert!(!child.env(DIR, dir.path()).status().unwrap().success());
        assert_eq!(names(dir.path()).len(), 3, "the named one and the state: {:?}", names(dir.path()));
        resolver(dir.path()).recover();
        assert_eq!(names(dir.path()), ["file", "state"]);
        assert_eq!(fs::read_to_string(dir.path().join("file")).unwrap(), "old");
    }
}
