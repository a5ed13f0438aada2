//! The directory to which an API's paths are confined.
//!
//! Clients expect that no path leads out of it. It is no security boundary: a caller that can name a path here can also
//! run a command, and commands are restricted by the sandbox's policy only.

use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use sandpod_protocol::v1::ErrorCode;
use sandpod_protocol::{Failure, limits};

/// The root of an API.
#[derive(Clone)]
pub(super) struct Root {
    dir: PathBuf,
    /// Whether an absolute path that starts with the root's own path is used as it is.
    accepts_own_prefix: bool,
}

/// Treatment of a link at the end of a path.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(super) enum FinalLink {
    Follow,
    Keep,
}

impl Root {
    pub(super) fn new(dir: &Path) -> Self {
        // Best effort: if it cannot be created, the first call reports that it is missing.
        let _ = fs::create_dir_all(dir);
        Self { dir: dir.to_owned(), accepts_own_prefix: false }
    }

    #[must_use]
    pub(super) fn accepts_own_prefix(self) -> Self {
        Self { accepts_own_prefix: true, ..self }
    }

    /// Resolves a caller's path to an absolute one without links.
    pub(super) fn resolve(&self, path: &str, end: FinalLink) -> Result<String, Failure> {
        if path.contains('\0') || path.len() > limits::MAX_PATH_BYTES {
            return Err(Failure::new(ErrorCode::InvalidArgument, "the path has a NUL byte or is too long"));
        }
        let root = self.dir.canonicalize().map_err(|error| {
            let message = format!("the root directory {} cannot be used: {error}", self.dir.display());
            Failure::new(Failure::from(error).code(), message)
        })?;
        let inner = Path::new(path);
        let inner = inner.strip_prefix(&root).ok().filter(|_| self.accepts_own_prefix).unwrap_or(inner);
        let inner = without_dots(inner).ok_or_else(escapes)?;
        let resolved = match (inner.parent(), inner.file_name(), end) {
            (Some(parent), Some(name), FinalLink::Keep) => follow(&root.join(parent))?.join(name),
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

/// Normalizes a relative path by its text. Returns `None` if it leads above its start.
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

/// Resolves links; the part of the path that does not exist yet is kept as it is.
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
    fn all_paths_resolve_below_the_root() {
        let (dir, root) = root();
        let expected = |inner| dir.path().join("root").join(inner).to_str().unwrap().to_owned();
        for path in ["inner/new", "/inner/new", "//inner/./new", "no/../inner/new", "inner//new/"] {
            assert_eq!(root.resolve(path, FinalLink::Follow).unwrap(), expected("inner/new"), "{path}");
        }
        for path in ["", ".", "/", "inner/.."] {
            assert_eq!(
                root.resolve(path, FinalLink::Keep).unwrap(),
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
            assert_eq!(code(root.resolve(path, FinalLink::Follow)), ErrorCode::PermissionDenied, "{path}");
        }
        assert_eq!(code(root.resolve("nowhere", FinalLink::Follow)), ErrorCode::NotFound);
        assert_eq!(code(root.resolve("out/file", FinalLink::Keep)), ErrorCode::PermissionDenied);
        let link = dir.path().join("root/out");
        assert_eq!(root.resolve("out", FinalLink::Keep).unwrap(), link.to_str().unwrap());
    }

    #[test]
    fn a_root_accepts_absolute_paths_below_itself() {
        let (_dir, root) = root();
        let file = format!("{}/inner/file", root.resolve("", FinalLink::Keep).unwrap());
        let known = root.clone().accepts_own_prefix();
        assert_eq!(known.resolve(&file, FinalLink::Follow).unwrap(), file);
        assert_ne!(root.resolve(&file, FinalLink::Follow).unwrap(), file);
    }

    #[test]
    fn an_impossible_file_name_is_refused() {
        let (_dir, root) = root();
        for path in ["a\0b", &"x".repeat(1 << 20)] {
            assert_eq!(code(root.resolve(path, FinalLink::Follow)), ErrorCode::InvalidArgument);
        }
    }
}
