//! Finds the directory of a user's local sandboxes, unless an option names it.
//!
//! It is the user's state directory. Without a writable home it is a directory that is deleted when the user's last
//! session or the machine ends, and the sandboxes with it.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind as Io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::process::geteuid;

use crate::{Error, ErrorKind, Result};

/// Returns the first usable directory. If `XDG_STATE_HOME` names one, no other is tried.
pub(super) fn find() -> Result<PathBuf> {
    let named = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|dir| dir.is_absolute());
    let below = |dir: PathBuf| dir.join("sandpod/local");
    if let Some(state) = named("XDG_STATE_HOME") {
        return Ok(below(state));
    }
    let home = std::env::home_dir().filter(|home| home.is_absolute()).map(|home| home.join(".local/state"));
    let lasting = [home, named("XDG_RUNTIME_DIR")].into_iter().flatten().map(below);
    match { lasting }.find(|dir| is_usable(dir)) {
        Some(dir) => Ok(dir),
        None => temporary(&std::env::temp_dir()),
    }
}

fn is_usable(dir: &Path) -> bool {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).is_ok() && access(dir, Access::WRITE_OK).is_ok()
}

/// Returns a directory below a shared one. It must belong to us, without access for other users.
fn temporary(among: &Path) -> Result<PathBuf> {
    let user = geteuid().as_raw();
    let dir = among.join(format!("sandpod-{user}"));
    let made = match DirBuilder::new().mode(0o700).create(&dir) {
        Err(error) if error.kind() != Io::AlreadyExists => Err(error),
        _ => fs::symlink_metadata(&dir),
    };
    match made {
        Ok(found) if found.is_dir() && found.uid() == user && found.mode() & 0o777 == 0o700 => Ok(dir),
        Ok(_) => Err(unusable(&format!("{} belongs to others", dir.display()))),
        Err(cause) => Err(unusable(&format!("{} can't be made: {cause}", dir.display()))),
    }
}

fn unusable(why: &str) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        format!(
            "There is no directory to keep local sandboxes in: the home directory can't be written, and {why}."
        ),
        "Set XDG_STATE_HOME to a directory that you may write.",
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_temporary_directory_is_private_and_found_again() {
        let among = tempfile::tempdir().unwrap();
        let dir = temporary(among.path()).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        assert_eq!(temporary(among.path()).unwrap(), dir);
    }

    #[test]
    fn a_shared_or_linked_directory_is_rejected() {
        let open = tempfile::tempdir().unwrap();
        let dir = temporary(open.path()).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        let linked = tempfile::tempdir().unwrap();
        symlink("/tmp", linked.path().join(dir.file_name().unwrap())).unwrap();
        for among in [open, linked] {
            let why = temporary(among.path()).unwrap_err().to_string();
            assert!(why.contains("belongs to others") && why.contains("XDG_STATE_HOME"), "{why}");
        }
    }

    #[test]
    fn a_directory_that_cannot_be_created_is_not_used() {
        assert!(!is_usable(Path::new("/proc/sandpod")));
    }
}
