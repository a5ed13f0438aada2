//! Paths as callers send them, and what the kernel says about them.

use std::io;
use std::path::{Path, PathBuf};

use sandpod_protocol::v1::ErrorCode;
use sandpod_protocol::{Failure, limits};

/// Takes a path that a caller sent, without trailing slashes, so that a link is meant as a link.
pub(crate) fn absolute(path: &str) -> Result<PathBuf, Failure> {
    let wrong = if !path.starts_with('/') {
        "is not absolute: start it with '/'"
    } else if path.contains('\0') {
        "has a NUL byte, which no file name can have: remove it"
    } else if path.len() > limits::MAX_PATH_BYTES {
        "is longer than a path can be: use a shorter one"
    } else {
        return Ok(Path::new(path).components().collect());
    };
    let shown: String = path.chars().take(200).collect();
    Err(Failure::new(ErrorCode::InvalidArgument, format!("the path {shown:?} {wrong}")).at(shown))
}

/// Says what the kernel refused to do to which path, and why.
pub(crate) fn refused(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Failure {
    move |error| {
        let message = format!("cannot {doing} '{}': {error}", path.display());
        Failure::new(Failure::from(error).code(), message).at(path.to_string_lossy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::place::{Purpose, Reach};
    use crate::files::testing::{code, fifo, text};

    #[test]
    fn a_path_must_be_absolute_without_nul_and_short_enough() {
        for path in ["", "relative/file", "/a\0b", &format!("/{}", "x".repeat(limits::MAX_PATH_BYTES))] {
            let failure = absolute(path).unwrap_err();
            assert_eq!(failure.code(), ErrorCode::InvalidArgument);
            assert!(failure.message().starts_with("the path "), "{failure}");
        }
    }

    #[test]
    fn trailing_slashes_and_dots_are_dropped() {
        assert_eq!(absolute("/a//b/./").unwrap(), Path::new("/a/b"));
    }

    fn open_file(path: &str) -> Result<(), Failure> {
        Reach::default().behind(path, Purpose::READ)?.open_regular().map(drop)
    }

    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = fifo(dir.path());
        assert_eq!(code(open_file(&text(&path))), ErrorCode::NotAFile);
    }

    #[test]
    fn a_refusal_says_what_was_tried_on_which_path_and_why() {
        let failure = open_file("/no/such/file").unwrap_err();
        assert_eq!(failure.code(), ErrorCode::NotFound);
        assert_eq!(failure.path(), Some("/no/such/file"));
        assert!(failure.message().starts_with("cannot read '/no/such/file': No such file"), "{failure}");
    }
}
