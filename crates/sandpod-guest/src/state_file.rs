//! Files of the guest's own state. Commands may be able to write there, so the content is not trusted.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Replaces a file atomically, readable for the guest's user only. It does not sync to disk: data can be lost only with the
/// machine, and then the sandbox is lost too.
pub(crate) fn save(path: &Path, content: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(path);
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    // Always a new file: an existing one of that name may be a link to anywhere.
    let temporary = tempfile::Builder::new()
        .make_in(dir, |path| OpenOptions::new().write(true).create_new(true).mode(0o600).open(path))?;
    temporary.as_file().write_all(content)?;
    temporary.persist(path).map(drop).map_err(|error| error.error)
}

/// Reads up to `most` bytes of a file. Follows no link, and does not block on a pipe without a writer.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let mut content = Vec::new();
    file.take(most).read_to_end(&mut content)?;
    Ok(content)
}

/// Creates an empty marker file. One that exists already is accepted.
pub(crate) fn create_marker(path: &Path) -> io::Result<()> {
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
    fn save_replaces_links_and_makes_the_file_private() {
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
    fn reading_a_pipe_instead_of_a_file_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        create_marker(&path).unwrap();
        assert_eq!(read(&path, 9).unwrap(), b"");
    }
}
