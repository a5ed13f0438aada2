//! Validation of paths.

use sandpod_protocol::v1::ErrorCode;
use sandpod_protocol::{Failure, limits};

/// Maximum number of bytes of a path in an error message.
const SHOWN_CHARACTERS: usize = 200;

/// Rejects an invalid path.
///
/// ```
/// assert!(sandpod_text::path::check("/workspace/main.py").is_ok());
/// assert!(sandpod_text::path::check("main.py").is_err());
/// ```
pub fn check(path: &str) -> Result<(), Failure> {
    let wrong = if !path.starts_with('/') {
        "is not absolute: start it with '/'"
    } else if path.contains('\0') {
        "has a NUL byte, which no file name can have: remove it"
    } else if path.len() > limits::MAX_PATH_BYTES {
        "is longer than a path can be: use a shorter one"
    } else {
        return Ok(());
    };
    let shown: String = path.chars().take(SHOWN_CHARACTERS).collect();
    Err(Failure::new(ErrorCode::InvalidArgument, format!("the path {shown:?} {wrong}")).at(shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_must_be_absolute_without_nul_and_short_enough() {
        for path in ["", "relative/file", "/a\0b", &format!("/{}", "x".repeat(limits::MAX_PATH_BYTES))] {
            let failure = check(path).unwrap_err();
            assert_eq!(failure.code(), ErrorCode::InvalidArgument);
            assert!(failure.message().starts_with("the path ") && failure.message().len() < 400, "{failure}");
        }
    }
}
