//! Conversion of local paths to and from the protocol's bytes.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use sandpod_protocol::limits;

/// Converts a guest's path to a relative local one. `None` if it is not below the root on every system.
pub(super) fn below(bytes: &[u8]) -> Option<PathBuf> {
    if bytes.len() > limits::MAX_PATH_BYTES {
        return None;
    }
    let mut path = PathBuf::new();
    for name in bytes.split(|byte| *byte == b'/') {
        let name = from_bytes(name)?;
        let mut components = Path::new(&name).components();
        let is_one = matches!(components.next(), Some(Component::Normal(normal)) if normal == name);
        if !is_one || components.next().is_some() || name.as_encoded_bytes().contains(&0) {
            return None;
        }
        path.push(name);
    }
    Some(path)
}

/// Returns whether the target of a link `depth` levels below the root is below the root, even if it passes other such links:
/// `..` may only come first.
pub(super) fn stays_below(target: &Path, depth: usize) -> bool {
    let ups = target.components().take_while(|component| *component == Component::ParentDir).count();
    let rest_is_down = target
        .components()
        .skip(ups)
        .all(|component| matches!(component, Component::Normal(_) | Component::CurDir));
    ups <= depth && rest_is_down && !target.as_os_str().is_empty()
}

#[cfg(unix)]
#[expect(clippy::unnecessary_wraps, reason = "other systems cannot represent all byte strings")]
pub(super) fn from_bytes(bytes: &[u8]) -> Option<OsString> {
    Some(std::os::unix::ffi::OsStringExt::from_vec(bytes.to_vec()))
}

#[cfg(not(unix))]
pub(super) fn from_bytes(bytes: &[u8]) -> Option<OsString> {
    std::str::from_utf8(bytes).ok().map(OsString::from)
}

/// Converts a path to the protocol's bytes.
pub(super) fn to_bytes(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for name in path {
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name.as_encoded_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_below_the_root_are_accepted() {
        assert_eq!(
            below(b"a/b c\n\xff/..d").unwrap(),
            Path::new("a").join(from_bytes(b"b c\n\xff").unwrap()).join("..d")
        );
        let long = "x/".repeat(limits::MAX_PATH_BYTES) + "x";
        for path in ["", "/a", "a//b", "a/", "..", "a/../b", ".", "a/.", "./a", "a\0b", &long] {
            assert_eq!(below(path.as_bytes()), None, "{path:?}");
        }
    }

    #[test]
    fn links_to_the_outside_are_recognized() {
        for (target, depth) in [("a", 0), ("a/b", 0), ("../a", 1), ("../../a/./b", 2), (".", 0), ("..", 1)] {
            assert!(stays_below(Path::new(target), depth), "{target}");
        }
        // The last but one goes up behind a name that may be a link itself.
        for (target, depth) in [("/a", 3), ("..", 0), ("../../a", 1), ("a/../b", 3), ("", 0)] {
            assert!(!stays_below(Path::new(target), depth), "{target}");
        }
    }
}
