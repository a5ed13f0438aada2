//! Files that Bind brings. All of them are written before the first command, or none.

use std::collections::HashSet;
use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use sandpod_protocol::v1::{BoundFile, ErrorCode};
use sandpod_protocol::{Failure, limits};
use tempfile::NamedTempFile;

use crate::files::{absolute, refused};

const DEFAULT_MODE: u32 = 0o644;

/// Validates files before anything is written.
pub(super) fn check(files: &[BoundFile]) -> Result<(), Failure> {
    let most = limits::MAX_BOUND_FILES;
    if files.len() > most {
        let message = format!(
            "{} files come with the binding, but at most {most} are allowed: upload them",
            files.len()
        );
        return Err(Failure::new(ErrorCode::TooLarge, message));
    }
    let mut seen = HashSet::new();
    for file in files {
        let path = absolute(&file.path)?;
        let wrong = if path.file_name().is_none() || file.path.ends_with('/') {
            "names a directory: name a file in it"
        } else if file.mode > 0o7777 {
            "has an invalid mode: use permission bits, such as 0644"
        } else if !seen.insert(path) {
            "is named twice: name each file once"
        } else {
            continue;
        };
        let message = format!("the file '{}' of the binding {wrong}", file.path);
        return Err(Failure::new(ErrorCode::InvalidArgument, message).at(&file.path));
    }
    Ok(())
}

/// Writes all files. If one cannot be written, the others are restored.
pub(super) fn write(files: &[BoundFile]) -> Result<(), Failure> {
    let staged = files.iter().map(StagedBoundFile::new).collect::<Result<Vec<_>, _>>()?;
    let mut written = Vec::new();
    for file in staged {
        let target = file.target.clone();
        match file.commit() {
            Ok(file) => written.push(file),
            Err(error) => {
                written.into_iter().rev().for_each(WrittenBoundFile::undo);
                return Err(refused("write", &target)(error));
            }
        }
    }
    Ok(())
}

/// A file beside its target.
struct StagedBoundFile {
    file: NamedTempFile,
    target: PathBuf,
}

/// A file that has replaced its target.
struct WrittenBoundFile {
    target: PathBuf,
    /// The previous file, for `undo`.
    previous: Option<NamedTempFile>,
}

impl StagedBoundFile {
    fn new(file: &BoundFile) -> Result<Self, Failure> {
        let path = absolute(&file.path)?;
        let stage = || {
            let parent = path.parent().unwrap_or(Path::new("/"));
            fs::create_dir_all(parent)?;
            let target = path.canonicalize().unwrap_or_else(|_| path.clone());
            if target.is_dir() {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            let beside = target.parent().unwrap_or(parent);
            let mut staged = tempfile::Builder::new().prefix(".sandpod-").tempfile_in(beside)?;
            staged.write_all(&file.content)?;
            let mode = if file.mode == 0 { DEFAULT_MODE } else { file.mode };
            staged.as_file().set_permissions(Permissions::from_mode(mode))?;
            Ok(Self { file: staged, target })
        };
        stage().map_err(refused("write", &path))
    }

    /// Swaps the file with the target, if there is one.
    fn commit(self) -> io::Result<WrittenBoundFile> {
        let Self { file, target } = self;
        match rustix::fs::renameat_with(CWD, file.path(), CWD, &target, RenameFlags::EXCHANGE) {
            Ok(()) => Ok(WrittenBoundFile { target, previous: Some(file) }),
            // There is no target, or the file system cannot exchange names.
            Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                file.persist(&target)?;
                Ok(WrittenBoundFile { target, previous: None })
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl WrittenBoundFile {
    fn undo(self) {
        // Best effort: the caller gets the first error.
        let _ = match self.previous {
            Some(previous) => fs::rename(previous.path(), &self.target),
            None => fs::remove_file(&self.target),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &Path, content: &str, mode: u32) -> BoundFile {
        BoundFile { path: path.to_str().unwrap().to_owned(), content: content.to_owned().into(), mode }
    }

    fn names(dir: &Path) -> Vec<String> {
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn files_come_with_their_directories_and_modes() {
        let dir = tempfile::tempdir().unwrap();
        let (secret, plain) = (dir.path().join("a/b/secret"), dir.path().join("plain"));
        fs::write(&plain, "old").unwrap();
        write(&[file(&secret, "s", 0o400), file(&plain, "new", 0)]).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&secret), mode(&plain)), (0o400, 0o644));
        assert_eq!(fs::read_to_string(&plain).unwrap(), "new");
        assert_eq!(names(&dir.path().join("a/b")), ["secret"]);
    }

    #[test]
    fn if_one_file_cannot_be_written_none_is() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        fs::write(&old, "old").unwrap();
        let below_a_file = file(&old.join("below"), "x", 0);
        let failure = write(&[file(&old, "changed", 0), file(&new, "x", 0), below_a_file]).unwrap_err();
        assert!(failure.message().starts_with("cannot write '"), "{failure}");
        assert_eq!(fs::read_to_string(&old).unwrap(), "old");
        assert_eq!(names(dir.path()), ["old"]);
    }

    #[test]
    fn files_written_before_a_failure_are_restored() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new, taken) = (dir.path().join("old"), dir.path().join("new"), dir.path().join("taken"));
        fs::write(&old, "old").unwrap();
        let stage = |path: &Path| StagedBoundFile::new(&file(path, "changed", 0)).unwrap();
        let (first, second, third) = (stage(&old), stage(&new), stage(&taken));
        // Another process creates a directory there meanwhile.
        fs::create_dir(&taken).unwrap();
        let written = [first.commit().unwrap(), second.commit().unwrap()];
        assert_eq!(fs::read_to_string(&old).unwrap(), "changed");
        drop(third);
        written.into_iter().rev().for_each(WrittenBoundFile::undo);
        assert_eq!(fs::read_to_string(&old).unwrap(), "old");
        assert!(!new.exists());
    }

    #[test]
    fn invalid_files_are_refused() {
        let twice = [file(Path::new("/tmp/a"), "", 0), file(Path::new("/tmp//a"), "", 0)];
        let many = vec![file(Path::new("/tmp/a"), "", 0); limits::MAX_BOUND_FILES + 1];
        assert_eq!(check(&many).unwrap_err().code(), ErrorCode::TooLarge);
        for path in ["relative", "/", "/tmp/"] {
            let wrong = check(&[file(Path::new(path), "", 0)]).unwrap_err();
            assert_eq!(wrong.code(), ErrorCode::InvalidArgument);
        }
        assert_eq!(check(&twice).unwrap_err().code(), ErrorCode::InvalidArgument);
        assert_eq!(
            check(&[file(Path::new("/a"), "", 0o10000)]).unwrap_err().code(),
            ErrorCode::InvalidArgument
        );
    }
}
