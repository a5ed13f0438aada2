//! Files of the guest's own state. They lie where commands may write, so nothing that is found there is trusted.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Replaces a file in one step; it is for the guest's user only. What is not yet on the disk is lost only with the machine,
/// and then the sandbox is lost too.
pub(crate) fn save(path: &Path, content: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(path);
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    // A new file, whatever was put under its name: a link there may lead anywhere.
    let temporary = tempfile::Builder::new()
        .make_in(dir, |path| OpenOptions::new().write(true).create_new(true).mode(0o600).open(path))?;
    temporary.as_file().write_all(content)?;
    temporary.persist(path).map(drop).map_err(|error| error.error)
}

/// The content of a file, as much as it may have. No link is followed, and nobody waited for who would write into a pipe.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let mut content = Vec::new();
    file.take(most).read_to_end(&mut content)?;
    Ok(content)
}

/// Notes that something is so, by a file that is there: that somebody else has put something there is as good.
pub(crate) fn mark(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_file_is_replaced_whatever_lies_there_and_only_its_user_can_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let (path, elsewhere) = (dir.path().join("below/state"), dir.path().join("elsewhere"));
        fs::write(&elsewhere, "kept").unwrap();
        save(&path, b"one").unwrap();
        fs::remove_file(&path).unwrap();
        symlink(&elsewhere, &path).unwrap();
        assert!(read(&path, 9).is_err());
        save(&path, b"two").unwrap();
        assert_eq!(read(&path, 2).unwrap(), b"tw");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read(&elsewhere).unwrap(), b"kept");
        assert_eq!(fs::read_dir(dir.path().join("below")).unwrap().count(), 1);
    }

    #[test]
    fn a_pipe_in_the_place_of_a_file_holds_up_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        mark(&path).unwrap();
        assert_eq!(read(&path, 9).unwrap(), b"");
    }
}
