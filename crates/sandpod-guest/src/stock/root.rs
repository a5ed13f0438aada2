//! The directory that an API's paths are below.
//!
//! Clients expect that a path does not lead out of it, so it does not. It is no wall: whoever can name a
//! path here can run a command, and commands go where the sandbox's policy lets them.

use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use sandpod_protocol::v1::ErrorCode;
use sandpod_protocol::{Failure, limits};

/// The root of an API.
#[derive(Clone)]
pub(super) struct Root {
    dir: PathBuf,
    /// An absolute path that begins with the root's own is meant as it is.
    known_by_its_name: bool,
}

/// What a path that ends in a link means.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(super) enum End {
    Followed,
    Itself,
}

impl Root {
    pub(super) fn new(dir: &Path) -> Self {
        // Best effort: where it cannot be made, the first call says that it is missing.
        let _ = fs::create_dir_all(dir);
        Self { dir: dir.to_owned(), known_by_its_name: false }
    }

    #[must_use]
    pub(super) fn known_by_its_name(self) -> Self {
        Self { known_by_its_name: true, ..self }
    }

    /// The absolute path that a caller's path means, without links in it.
    pub(super) fn resolve(&self, path: &str, end: End) -> Result<String, Failure> {
        if path.contains('\0') || path.len() > limits::MAX_PATH_BYTES {
            return Err(Failure::new(ErrorCode::InvalidArgument, "the path has a NUL byte or is too long"));
        }
        let root = self.dir.canonicalize().map_err(|error| {
            let message = format!("the root directory {} cannot be used: {error}", self.dir.display());
            Failure::new(Failure::from(error).code(), message)
        })?;
        let inner = Path::new(path);
        let inner = inner.strip_prefix(&root).ok().filter(|_| self.known_by_its_name).unwrap_or(inner);
        let inner = without_dots(inner).ok_or_else(escapes)?;
        let resolved = match (inner.parent(), inner.file_name(), end) {
            (Some(parent), Some(name), End::Itself) => follow(&root.join(parent))?.join(name),
            _ => follow(&root.join(&inner))?,
        };
        if !resolved.starts_with(&root) {
            return Err(escapes());
        }
        resolved.into_os_string().into_string().map_err(|_| {
            Failure::new(ErrorCode::InvalidArgument, "the path leads to a name that is not UTF-8")
        })
    }
}

/// A relative path as it reads, unless it leads up from where it starts.
fn without_dots(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => plain.push(name),
            Component::ParentDir => {
                if !plain.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Some(plain)
}

/// Where a path leads; what is not there yet stays as it reads.
fn follow(path: &Path) -> Result<PathBuf, Failure> {
    match path.canonicalize() {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        followed => return followed.map_err(Failure::from),
    }
    if fs::symlink_metadata(path).is_ok() {
        let message = "the path has a link that leads nowhere: make what it leads to first";
        return Err(Failure::new(ErrorCode::NotFound, message));
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(follow(parent)?.join(name)),
        _ => Err(Failure::new(ErrorCode::NotFound, "there is no such path")),
    }
}

fn escapes() -> Failure {
    Failure::new(ErrorCode::PermissionDenied, "the path leads out of the root directory: name one below it")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn root() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::new(&dir.path().join("root"));
        fs::create_dir_all(dir.path().join("root/inner")).unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        (dir, root)
    }

    fn code(resolved: Result<String, Failure>) -> ErrorCode {
        resolved.unwrap_err().code()
    }

    #[test]
    fn paths_are_below_the_root_however_they_begin() {
        let (dir, root) = root();
        let expected = |inner| dir.path().join("root").join(inner).to_str().unwrap().to_owned();
        for path in ["inner/new", "/inner/new", "//inner/./new", "no/../inner/new", "inner//new/"] {
            assert_eq!(root.resolve(path, End::Followed).unwrap(), expected("inner/new"), "{path}");
        }
        for path in ["", ".", "/", "inner/.."] {
            assert_eq!(
                root.resolve(path, End::Itself).unwrap(),
                expected("").trim_end_matches('/'),
                "{path}"
            );
        }
    }

    #[test]
    fn dots_and_links_do_not_lead_out() {
        let (dir, root) = root();
        symlink("../outside", dir.path().join("root/out")).unwrap();
        symlink("../outside/new", dir.path().join("root/nowhere")).unwrap();
        for path in ["..", "../outside", "inner/../../outside", "out", "out/file"] {
            assert_eq!(code(root.resolve(path, End::Followed)), ErrorCode::PermissionDenied, "{path}");
        }
        assert_eq!(code(root.resolve("nowhere", End::Followed)), ErrorCode::NotFound);
        assert_eq!(code(root.resolve("out/file", End::Itself)), ErrorCode::PermissionDenied);
        let link = dir.path().join("root/out");
        assert_eq!(root.resolve("out", End::Itself).unwrap(), link.to_str().unwrap());
    }

    #[test]
    fn a_root_that_is_known_by_its_name_takes_its_own_absolute_paths() {
        let (_dir, root) = root();
        let file = format!("{}/inner/file", root.resolve("", End::Itself).unwrap());
        let known = root.clone().known_by_its_name();
        assert_eq!(known.resolve(&file, End::Followed).unwrap(), file);
        assert_ne!(root.resolve(&file, End::Followed).unwrap(), file);
    }

    #[test]
    fn a_name_that_no_file_can_have_is_refused() {
        let (_dir, root) = root();
        for path in ["a\0b", &"x".repeat(1 << 20)] {
            assert_eq!(code(root.resolve(path, End::Followed)), ErrorCode::InvalidArgument);
        }
    }
}
