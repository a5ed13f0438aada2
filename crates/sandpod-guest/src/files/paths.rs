//! Validates paths that callers send, and builds errors for them.

use std::io;
use std::path::{Path, PathBuf};

use sandpod_protocol::Failure;

/// Validates a path and removes trailing slashes, so that a link at its end is not followed.
pub(crate) fn absolute(path: &str) -> Result<PathBuf, Failure> {
    sandpod_text::path::check(path)?;
    Ok(Path::new(path).components().collect())
}

/// Builds the failure for a system call that failed on a path.
pub(crate) fn refused(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Failure {
    move |error| {
        let message = format!("cannot {doing} '{}': {error}", path.display());
        Failure::new(Failure::from(error).code(), message).at(path.to_string_lossy())
    }
}

#[cfg(test)]
mod tests {
    use sandpod_protocol::v1::ErrorCode;

    use super::*;
    use crate::files::resolver::{PathResolver, Purpose};
    use crate::files::testing::{code, fifo, text};

    #[test]
    fn trailing_slashes_and_dots_are_dropped() {
        assert_eq!(absolute("/a//b/./").unwrap(), Path::new("/a/b"));
    }

    fn open_file(path: &str) -> Result<(), Failure> {
        PathResolver::default().resolve(path, Purpose::READ)?.open_regular().map(drop)
    }

    #[test]
    fn a_pipe_is_refused_without_blocking() {
        let dir = tempfile::tempdir().unwrap();
        let path = fifo(dir.path());
        assert_eq!(code(open_file(&text(&path))), ErrorCode::NotAFile);
    }

    #[test]
    fn a_failure_names_the_operation_the_path_and_the_cause() {
        let failure = open_file("/no/such/file").unwrap_err();
        assert_eq!(failure.code(), ErrorCode::NotFound);
        assert_eq!(failure.path(), Some("/no/such/file"));
        assert!(failure.message().starts_with("cannot read '/no/such/file': No such file"), "{failure}");
    }
}
