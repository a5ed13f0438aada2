//! New content beside the file that it will replace.
//!
//! It has no name until it is whole, where the file system can do that, so that a guest that is killed
//! leaves nothing; otherwise a noted one. Committing gives it the target's mode, owner and name in one
//! step: readers see the old content or the new, never a part. Other hard links of a replaced file keep the
//! old content, as package stores that share files by links need it.

use std::fs::{File, Permissions};
use std::io::{self, Seek as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{PermissionsExt as _, fchown};
use std::sync::Arc;

use rustix::fs::{Access, AtFlags, CWD, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use sandpod_protocol::Failure;
use sandpod_protocol::v1::{ErrorCode, WriteResponse};

use super::facts::Facts;
use super::notes::{Notes, Temporary};
use super::place::{Place, own_fd};
use super::turns::{self, Turn};

/// New content for a place. It goes away unless it is committed.
pub(super) struct Staged {
    place: Arc<Place>,
    file: File,
    name: Name,
    mode: Option<u32>,
    notes: Notes,
}

enum Name {
    None,
    Temporary(Temporary),
    /// The directory is closed: the content can only be written into the file that is there.
    Elsewhere,
}

impl Staged {
    /// Begins new content; with `mode`, or that of the file that it replaces.
    pub(super) fn new(place: Arc<Place>, notes: &Notes, mode: Option<u32>) -> Result<Self, Failure> {
        Self::begin(place, notes, mode, |place, notes, mode| {
            let nameless = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            match rustix::fs::openat(place.dir(), ".", nameless, Mode::from_raw_mode(mode)) {
                Ok(file) => Ok((file.into(), Name::None)),
                Err(_) => named(place.dir(), notes, mode),
            }
        })
    }

    /// [`new`](Self::new) with a name from the beginning, by which a journal can find it: in `spare` if the
    /// directory is closed.
    pub(super) fn named(place: Arc<Place>, notes: &Notes, spare: &Arc<OwnedFd>) -> Result<Self, Failure> {
        let replaces = place.now()?.is_some();
        Self::begin(place, notes, None, |place, notes, mode| match named(place.dir(), notes, mode) {
            Err(error) if replaces && is_closed(&error) => named(spare, notes, mode),
            named => named,
        })
    }

    fn begin(
        place: Arc<Place>,
        notes: &Notes,
        mode: Option<u32>,
        create: impl FnOnce(&Place, &Notes, u32) -> io::Result<(File, Name)>,
    ) -> Result<Self, Failure> {
        let exists = existing(&place)?.is_some();
        // Nobody may read the content before it has the mode of the file that it replaces.
        let first_mode = if exists || mode.is_some() { 0o600 } else { 0o644 };
        let (file, name) = match create(&place, notes, first_mode) {
            Ok(created) => created,
            Err(error) if exists && is_closed(&error) => {
                (tempfile::tempfile().map_err(|error| place.refused(error))?, Name::Elsewhere)
            }
            Err(error) => return Err(place.refused(error)),
        };
        Ok(Self { place, file, name, mode, notes: notes.clone() })
    }

    pub(super) fn append(&mut self, content: &[u8]) -> Result<(), Failure> {
        self.file.write_all(content).map_err(|error| self.place.refused(error))
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// The name that it has for now; none if it can only be written into the file that is there.
    pub(super) fn temporary(&self) -> Option<&Temporary> {
        match &self.name {
            Name::Temporary(temporary) => Some(temporary),
            Name::None | Name::Elsewhere => None,
        }
    }

    /// Makes the content the target's, when it is our turn.
    pub(super) fn commit_in_turn(self) -> Result<WriteResponse, Failure> {
        let turn = turns::take([&*self.place])?;
        let atomic = self.commit(&turn)?;
        Ok(WriteResponse { atomic })
    }

    /// Makes the content the target's; false if that could not be done in one step.
    pub(super) fn commit(mut self, turn: &Turn) -> Result<bool, Failure> {
        self.commit_by(turn, |temporary, place| temporary.rename(place.dir(), place.name()))
    }

    pub(super) fn commit_by(
        &mut self,
        _turn: &Turn,
        rename: impl FnOnce(&mut Temporary, &Place) -> rustix::io::Result<()>,
    ) -> Result<bool, Failure> {
        let existing = self.settle()?;
        match self.take_name(existing.is_some(), rename) {
            Ok(()) => Ok(true),
            Err(errno) if existing.is_some() && is_closed(&errno.into()) => {
                overwrite(&self.place, &self.file).map_err(|error| self.place.refused(error))?;
                Ok(false)
            }
            Err(errno) => Err(self.place.refused(errno)),
        }
    }

    /// Gives the content the owner and mode that it will have; says what is there now.
    pub(super) fn settle(&self) -> Result<Option<Facts>, Failure> {
        let existing = existing(&self.place)?;
        if let Some(Facts { uid, gid, .. }) = existing {
            // Only root may give files away. The owner comes first, because a change of it clears mode bits.
            let _ = fchown(&self.file, Some(uid), Some(gid)).or_else(|_| fchown(&self.file, None, Some(gid)));
        }
        if let Some(mode) = self.mode.or(existing.map(|existing| existing.mode)) {
            let permissions = Permissions::from_mode(mode & 0o7777);
            self.file.set_permissions(permissions).map_err(|error| self.place.refused(error))?;
        }
        Ok(existing)
    }

    fn take_name(
        &mut self,
        replaces: bool,
        rename: impl FnOnce(&mut Temporary, &Place) -> rustix::io::Result<()>,
    ) -> rustix::io::Result<()> {
        if let Name::None = self.name {
            if !replaces {
                match link(&self.file, self.place.dir(), self.place.name()) {
                    Err(Errno::EXIST) => {} // made meanwhile
                    linked => return linked,
                }
            }
            let temporary = Temporary::new(self.place.dir(), &self.notes)?;
            link(&self.file, temporary.dir(), temporary.name())?;
            self.name = Name::Temporary(temporary);
        }
        match &mut self.name {
            Name::Temporary(temporary) => rename(temporary, &self.place),
            Name::None | Name::Elsewhere => Err(Errno::XDEV),
        }
    }
}

fn named(dir: &Arc<OwnedFd>, notes: &Notes, mode: u32) -> io::Result<(File, Name)> {
    let temporary = Temporary::new(dir, notes)?;
    let file = temporary.create(mode)?;
    Ok((file, Name::Temporary(temporary)))
}

/// Gives a file without a name one.
fn link(file: &File, dir: &OwnedFd, name: &std::ffi::OsStr) -> rustix::io::Result<()> {
    rustix::fs::linkat(CWD, own_fd(file.as_fd()), dir, name, AtFlags::SYMLINK_FOLLOW)
}

/// What is there now, if it may be replaced.
fn existing(place: &Place) -> Result<Option<Facts>, Failure> {
    let Some(facts) = place.now()? else { return Ok(None) };
    if facts.is_link() {
        let path = place.path().to_string_lossy();
        let message = format!("'{path}' became a link while it was written: nothing was changed, try again");
        return Err(Failure::new(ErrorCode::Changed, message).at(path));
    }
    facts.check_regular(place.path())?;
    // Renaming would not ask: it needs the directory's permission only.
    let permitted = rustix::fs::accessat(place.dir(), place.name(), Access::WRITE_OK, AtFlags::empty());
    permitted.map_err(|errno| place.refused(errno))?;
    Ok(Some(facts))
}

/// Whether a name can't be taken although its file may be written: a mount, another's directory.
pub(super) fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::ResourceBusy
            | ErrorKind::CrossesDevices
            | ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
    )
}

/// Writes over a file's content. Room is made first and it is shortened last, so that a full disk
/// leaves it as it was.
pub(super) fn overwrite(place: &Place, mut content: &File) -> io::Result<()> {
    let length = content.seek(io::SeekFrom::End(0))?;
    content.rewind()?;
    let mut file = File::from(place.open(OFlags::WRONLY)?);
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
    use crate::files::place::{Purpose, Reach};
    use crate::files::testing::{names, text, without};

    const DIR: &str = "SANDPOD_KILLED_DIR";

    fn reach(dir: &Path) -> Reach {
        Reach::new(&dir.join("state"), without())
    }

    /// The other end of the test below: is killed when it has written a part, with and without a name.
    #[test]
    fn killed_child() {
        let Some(dir) = env::var_os(DIR) else { return };
        let (dir, reach) = (Path::new(&dir), reach(Path::new(&dir)));
        let place = |name: &str| Arc::new(reach.made(&text(&dir.join(name)), Purpose::WRITE).unwrap());
        let spare = place("file").dir().clone();
        let mut nameless = Staged::new(place("file"), &reach.notes, None).unwrap();
        let mut named = Staged::named(place("file"), &reach.notes, &spare).unwrap();
        nameless.append(b"half").unwrap();
        named.append(b"half").unwrap();
        std::process::abort();
    }

    #[test]
    fn a_guest_that_is_killed_while_it_writes_leaves_the_old_content_and_nothing_for_long() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "old").unwrap();
        let mut child = Command::new(env::current_exe().unwrap());
        child
            .args(["--exact", "files::staged::tests::killed_child"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        assert!(!child.env(DIR, dir.path()).status().unwrap().success());
        assert_eq!(names(dir.path()).len(), 3, "the named one and the state: {:?}", names(dir.path()));
        reach(dir.path()).repair();
        assert_eq!(names(dir.path()), ["file", "state"]);
        assert_eq!(fs::read_to_string(dir.path().join("file")).unwrap(), "old");
    }
}
