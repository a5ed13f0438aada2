//! Replacing a file's content in one step.
//!
//! A [`Target`] is where a write ends up, behind all links. [`Staged`] is new content in a file of its
//! own beside it; committing gives it the target's mode, owner and name. Readers see the old content
//! or the new, never a part.

use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, ErrorKind, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use sandpod_protocol::v1::{ErrorCode, WriteRequest, WriteResponse};
use sandpod_protocol::{Failure, limits};
use tempfile::{NamedTempFile, PersistError};

use super::paths::{absolute, check_regular, refused, unblocking};
use super::turns::{self, Turn};

/// The links in a row that the kernel follows.
const MAX_LINKS: usize = 40;

pub(super) fn write(request: &WriteRequest) -> Result<WriteResponse, Failure> {
    if request.content.len() > limits::MAX_INLINE_BYTES {
        let message =
            format!("more than {} bytes do not fit into a write: upload them", limits::MAX_INLINE_BYTES);
        return Err(Failure::new(ErrorCode::TooLarge, message).at(&request.path));
    }
    let mut staged = Staged::new(Target::make(&request.path)?)?;
    staged.append(&request.content)?;
    staged.commit_in_turn()
}

/// Where a write ends up: the canonical path of a file that is there or can be.
#[derive(Clone)]
pub(super) struct Target(PathBuf);

impl Target {
    /// Follows links, also one that leads nowhere yet, and makes the directories above the file.
    pub(super) fn make(path: &str) -> Result<Self, Failure> {
        let asked = absolute(path)?;
        if path.ends_with('/') || asked.file_name().is_none() {
            let message = format!("'{path}' names a directory: name a file in it");
            return Err(Failure::new(ErrorCode::IsDirectory, message).at(path));
        }
        let path = follow(&asked)?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(refused("write", &asked)(ErrorKind::IsADirectory.into()));
        };
        make_directories(parent).map_err(refused("make", parent))?;
        let parent = parent.canonicalize().map_err(refused("write", &asked))?;
        Ok(Self(parent.join(name)))
    }

    /// Finds a file that must be there.
    pub(super) fn find(path: &str) -> Result<Self, Failure> {
        let path = absolute(path)?;
        path.canonicalize().map(Self).map_err(refused("edit", &path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Waits until nobody else here changes the file.
    pub(super) fn turn(&self) -> Turn {
        turns::take(&self.0)
    }

    /// What is there now, if it may be replaced.
    fn existing(&self) -> Result<Option<Metadata>, Failure> {
        let metadata = match fs::metadata(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            metadata => metadata.map_err(refused("write", &self.0))?,
        };
        check_regular(&metadata, &self.0)?;
        // Renaming would not ask: it needs the directory's permission only.
        let permitted = rustix::fs::access(&self.0, Access::WRITE_OK);
        permitted.map_err(|errno| refused("write", &self.0)(errno.into()))?;
        Ok(Some(metadata))
    }
}

fn make_directories(path: &Path) -> io::Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => ErrorKind::NotADirectory.into(), // something else has the name
        _ => error,
    })
}

/// The end of a chain of links.
fn follow(path: &Path) -> Result<PathBuf, Failure> {
    let mut end = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(link) = fs::read_link(&end) else { return Ok(end) };
        end.pop();
        end.push(link);
    }
    let message =
        format!("'{}' is a link that leads through too many links: name the file itself", path.display());
    Err(Failure::new(ErrorCode::InvalidArgument, message).at(path.to_string_lossy()))
}

/// New content beside its target. It goes away unless it is committed.
pub(super) struct Staged {
    target: Target,
    file: NamedTempFile,
}

impl Staged {
    pub(super) fn new(target: Target) -> Result<Self, Failure> {
        let exists = target.existing()?.is_some();
        // Nobody may read the content before it has the mode of the file that it replaces.
        let mode = if exists { 0o600 } else { 0o644 };
        let mut builder = tempfile::Builder::new();
        builder.prefix(".sandpod-").permissions(Permissions::from_mode(mode));
        let parent = target.0.parent().unwrap_or(Path::new("/"));
        let file = match builder.tempfile_in(parent) {
            Err(error) if exists && is_closed(&error) => builder.tempfile(), // the commit will be in place
            file => file,
        };
        let file = file.map_err(refused("write", &target.0))?;
        Ok(Self { target, file })
    }

    pub(super) fn append(&mut self, content: &[u8]) -> Result<(), Failure> {
        self.file.write_all(content).map_err(refused("write", &self.target.0))
    }

    /// Makes the content the target's, when it is our turn.
    pub(super) fn commit_in_turn(self) -> Result<WriteResponse, Failure> {
        let turn = self.target.turn();
        let atomic = self.commit(&turn)?;
        Ok(WriteResponse { atomic })
    }

    /// Makes the content the target's; false if that could not be done in one step.
    pub(super) fn commit(self, turn: &Turn) -> Result<bool, Failure> {
        self.commit_by(turn, |file, path| file.persist(path))
    }

    fn commit_by(
        self,
        _turn: &Turn,
        rename: impl FnOnce(NamedTempFile, &Path) -> Result<File, PersistError>,
    ) -> Result<bool, Failure> {
        let path = &self.target.0;
        let existing = self.target.existing()?;
        if let Some(existing) = &existing {
            keep_owner_and_mode(self.file.as_file(), existing).map_err(refused("write", path))?;
        }
        match rename(self.file, path) {
            Ok(_) => Ok(true),
            Err(PersistError { error, file }) if existing.is_some() && is_closed(&error) => {
                overwrite(path, file.as_file()).map_err(refused("write", path))?;
                Ok(false)
            }
            Err(PersistError { error, .. }) => Err(refused("write", path)(error)),
        }
    }
}

/// Whether a name can't be taken although its file may be written: a mount, another's directory.
fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ResourceBusy
            | ErrorKind::CrossesDevices
            | ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
    )
}

fn keep_owner_and_mode(file: &File, existing: &Metadata) -> io::Result<()> {
    let (uid, gid) = (existing.uid(), existing.gid());
    // Only root may give files away. The owner comes first, because a change of it clears mode bits.
    let _ = fchown(file, Some(uid), Some(gid)).or_else(|_| fchown(file, None, Some(gid)));
    file.set_permissions(Permissions::from_mode(existing.mode() & 0o7777))
}

/// Writes over a file's content. It is shortened last, so that a full disk does not empty it first.
fn overwrite(path: &Path, mut content: &File) -> io::Result<()> {
    content.rewind()?;
    let mut file = unblocking().write(true).open(path)?;
    let length = io::copy(&mut content, &mut file)?;
    file.set_len(length)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;
    use crate::files::testing::{as_nobody, chmod, code, fifo, mode, text};

    fn write_to(path: &Path, content: &str) -> Result<bool, Failure> {
        let content = content.to_owned().into();
        write(&WriteRequest { operation: None, path: text(path), content }).map(|response| response.atomic)
    }

    fn names(dir: &Path) -> Vec<String> {
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_new_file_comes_with_the_directories_above_it_and_the_usual_modes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/file");
        assert!(write_to(&path, "hello").unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "hello");
        // What the process's umask leaves of 0644 and 0755, as any other new file has it.
        fs::write(dir.path().join("plain"), "").unwrap();
        fs::create_dir(dir.path().join("plain-dir")).unwrap();
        assert_eq!(mode(&path), mode(&dir.path().join("plain")) & 0o644);
        assert_eq!(mode(&dir.path().join("a")), mode(&dir.path().join("plain-dir")) & 0o755);
        assert_eq!(names(&dir.path().join("a/b")), ["file"]);
    }

    #[test]
    fn a_replaced_file_is_another_file_with_the_same_mode_and_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "long old content").unwrap();
        let root = rustix::process::geteuid().is_root();
        if root {
            chown(&path, Some(1234), Some(2345)).unwrap();
        }
        chmod(&path, 0o4751);
        let before = fs::metadata(&path).unwrap();
        assert!(write_to(&path, "new").unwrap());
        let after = fs::metadata(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(mode(&path), 0o4751);
        assert_eq!((after.uid(), after.gid()), (before.uid(), before.gid()));
        assert_ne!(after.ino(), before.ino());
        assert_eq!(names(dir.path()), ["file"]);
    }

    #[test]
    fn links_are_followed_also_to_a_target_that_is_not_there_yet() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        symlink("middle", dir.path().join("link")).unwrap();
        symlink("sub/../new/target", dir.path().join("middle")).unwrap();
        for content in ["first", "second"] {
            assert!(write_to(&dir.path().join("link"), content).unwrap());
            assert_eq!(fs::read_to_string(dir.path().join("new/target")).unwrap(), content);
        }
        assert!(fs::symlink_metadata(dir.path().join("link")).unwrap().is_symlink());
    }

    #[test]
    fn a_ring_of_links_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        symlink("b", dir.path().join("a")).unwrap();
        symlink("a", dir.path().join("b")).unwrap();
        assert_eq!(code(write_to(&dir.path().join("a"), "x")), ErrorCode::InvalidArgument);
    }

    #[test]
    fn where_a_name_can_not_be_taken_the_file_is_written_in_place() {
        for kind in [ErrorKind::ResourceBusy, ErrorKind::CrossesDevices] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("mounted");
            fs::write(&path, "long old content").unwrap();
            let inode = fs::metadata(&path).unwrap().ino();
            let mut staged = Staged::new(Target::make(&text(&path)).unwrap()).unwrap();
            staged.append(b"new").unwrap();
            let turn = staged.target.turn();
            let refuse = |file, _: &Path| Err(PersistError { error: kind.into(), file });
            assert!(!staged.commit_by(&turn, refuse).unwrap());
            assert_eq!(fs::read_to_string(&path).unwrap(), "new");
            assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
            assert_eq!(names(dir.path()), ["mounted"]);
        }
    }

    #[test]
    fn a_failed_commit_keeps_the_old_content_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "old").unwrap();
        let mut staged = Staged::new(Target::make(&text(&path)).unwrap()).unwrap();
        staged.append(b"new").unwrap();
        let turn = staged.target.turn();
        let refuse = |file, _: &Path| Err(PersistError { error: ErrorKind::StorageFull.into(), file });
        assert_eq!(code(staged.commit_by(&turn, refuse)), ErrorCode::NoSpace);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(names(dir.path()), ["file"]);
    }

    #[test]
    fn a_writable_file_in_a_closed_directory_is_written_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "long old content").unwrap();
        chmod(&path, 0o666);
        chmod(dir.path(), 0o555);
        assert!(!as_nobody(|| write_to(&path, "new")).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(code(as_nobody(|| write_to(&dir.path().join("other"), "x"))), ErrorCode::PermissionDenied);
    }

    #[test]
    fn a_file_that_may_not_be_written_is_not_replaced_either() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "old").unwrap();
        chmod(&path, 0o444);
        chmod(dir.path(), 0o777);
        assert_eq!(code(as_nobody(|| write_to(&path, "new"))), ErrorCode::PermissionDenied);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(code(write_to(dir.path(), "x")), ErrorCode::IsDirectory);
        assert_eq!(code(write_to(&dir.path().join("new/"), "x")), ErrorCode::IsDirectory);
        assert_eq!(code(write_to(Path::new("/"), "x")), ErrorCode::IsDirectory);
        assert_eq!(code(write_to(&fifo(dir.path()), "x")), ErrorCode::NotAFile);
        fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(code(write_to(&dir.path().join("file/below"), "x")), ErrorCode::NotADirectory);
    }

    #[test]
    fn more_than_a_message_may_hold_is_for_upload() {
        let dir = tempfile::tempdir().unwrap();
        let content = "x".repeat(limits::MAX_INLINE_BYTES + 1);
        assert_eq!(code(write_to(&dir.path().join("file"), &content)), ErrorCode::TooLarge);
    }
}
