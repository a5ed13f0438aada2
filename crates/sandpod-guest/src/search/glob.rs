//! Finds files by name.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use prost::Message as _;
use sandpod_protocol::v1::{FileInfo, FileKind, GlobRequest, GlobResponse, TruncationReason};
use sandpod_protocol::{Failure, limits};
use sandpod_text::Pattern;
use tokio::time::Instant;

use super::walk::{WalkEntry, walk};
use crate::files::{FileStat, PathResolver, Purpose, stat_at};

/// Finds the regular files below a root that match a pattern.
pub(crate) fn glob(request: &GlobRequest, resolver: &PathResolver) -> Result<GlobResponse, Failure> {
    glob_within(request, resolver, Instant::now() + limits::SEARCH_BUDGET, limits::MAX_GLOB_MATCHES)
}

fn glob_within(
    request: &GlobRequest,
    resolver: &PathResolver,
    deadline: Instant,
    max_matches: usize,
) -> Result<GlobResponse, Failure> {
    let pattern = Pattern::new(&request.pattern)?;
    let requested = if request.root.is_empty() { "/" } else { &request.root };
    let root = resolver.resolve(requested, Purpose::SEARCH)?;
    let real_root = root.real_path()?;

    let found = Mutex::new(Found::default());
    let enters = |directory: &Path| pattern.enters(directory);
    let visitor = || {
        |entry: &WalkEntry<'_>| {
            if !pattern.matches(entry.path) {
                return ControlFlow::Continue(());
            }
            let path = root.path().join(entry.path);
            let Some(stat) = file_at(entry, &path, &real_root, resolver) else {
                return ControlFlow::Continue(());
            };
            let info = stat.info(path.to_string_lossy().into_owned());
            found.lock().unwrap_or_else(PoisonError::into_inner).add(info, max_matches)
        }
    };
    let incomplete = walk(&root, resolver, deadline, enters, visitor)?;
    let Found { mut matches, full, .. } = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    matches.sort_by(|a, b| a.path.cmp(&b.path));
    let truncated = if full || incomplete.out_of_time {
        TruncationReason::Budget
    } else if incomplete.unreadable {
        TruncationReason::Unreadable
    } else {
        TruncationReason::Unspecified
    };
    Ok(GlobResponse { matches, truncated: truncated.into() })
}

/// Files found so far.
#[derive(Default)]
struct Found {
    matches: Vec<FileInfo>,
    bytes: usize,
    /// Whether there are more than fit into the response.
    full: bool,
}

impl Found {
    fn add(&mut self, info: FileInfo, max_matches: usize) -> ControlFlow<()> {
        self.bytes += info.encoded_len();
        self.full |= self.matches.len() == max_matches || self.bytes as u64 > limits::MAX_OUTPUT_BYTES;
        if self.full {
            return ControlFlow::Break(());
        }
        self.matches.push(info);
        ControlFlow::Continue(())
    }
}

/// Returns the stat of the regular file that an entry is, or that a link within the root leads to, if it may be
/// read.
fn file_at(entry: &WalkEntry<'_>, path: &Path, root: &Path, resolver: &PathResolver) -> Option<FileStat> {
    let is_link = entry.kind == FileKind::Link;
    if resolver.rules().is_unrestricted() && !is_link {
        return stat_at(entry.dir, entry.name).ok().filter(FileStat::is_file);
    }
    let location = resolver.resolve_own(path.to_owned(), Purpose::SEARCH).ok()?;
    if is_link && !location.real_path().ok()?.starts_with(root) {
        return None;
    }
    location.found().ok().filter(FileStat::is_file)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use sandpod_protocol::v1::ErrorCode;

    use super::*;
    use crate::files::testing::{as_nobody, chmod, code, fifo, text};

    fn tree(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "12345").unwrap();
        }
        dir
    }

    fn request(root: &Path, pattern: &str) -> GlobRequest {
        GlobRequest { pattern: pattern.to_owned(), root: text(root) }
    }

    fn found(root: &Path, pattern: &str) -> Vec<String> {
        let response = glob(&request(root, pattern), &PathResolver::default()).unwrap();
        assert_eq!(response.truncated(), TruncationReason::Unspecified);
        let below = |path: &str| text(Path::new(path).strip_prefix(root).unwrap());
        response.matches.iter().map(|info| below(&info.path)).collect()
    }

    #[test]
    fn files_are_sorted_with_absolute_paths_and_metadata() {
        let dir = tree(&["b.py", "a/z.py", "a.txt", "a/.b/c.py"]);
        assert_eq!(found(dir.path(), "*.py"), ["a/.b/c.py", "a/z.py", "b.py"]);
        assert_eq!(found(dir.path(), "**/*.py"), ["a/z.py", "b.py"]);
        let info = glob(&request(dir.path(), "a.txt"), &PathResolver::default()).unwrap().matches.remove(0);
        assert_eq!(info.path, text(&dir.path().join("a.txt")));
        assert_eq!((info.kind(), info.size), (FileKind::File, 5));
    }

    #[test]
    fn only_regular_files_and_links_to_them_inside_the_root_are_found() {
        let outside = tree(&["secret"]);
        let dir = tree(&["file", "sub/below"]);
        symlink("sub/below", dir.path().join("inside")).unwrap();
        symlink(outside.path().join("secret"), dir.path().join("outside")).unwrap();
        symlink("nowhere", dir.path().join("broken")).unwrap();
        symlink("sub", dir.path().join("dirlink")).unwrap();
        fifo(dir.path());
        assert_eq!(found(dir.path(), "*"), ["file", "inside", "sub/below"]);
    }

    #[test]
    fn a_root_that_is_a_link_is_searched_and_named_as_given() {
        let dir = tree(&["real/file"]);
        let link = dir.path().join("link");
        symlink("real", &link).unwrap();
        assert_eq!(found(&link, "*"), ["file"]);
    }

    #[test]
    fn only_more_than_the_maximum_of_matches_is_truncated() {
        let dir = tree(&["a", "b", "c"]);
        let within = |max| {
            let deadline = Instant::now() + limits::SEARCH_BUDGET;
            glob_within(&request(dir.path(), "*"), &PathResolver::default(), deadline, max).unwrap()
        };
        assert_eq!((within(3).matches.len(), within(3).truncated()), (3, TruncationReason::Unspecified));
        assert_eq!((within(2).matches.len(), within(2).truncated()), (2, TruncationReason::Budget));
    }

    #[test]
    fn a_search_that_takes_too_long_is_truncated() {
        let dir = tree(&["a"]);
        let response =
            glob_within(&request(dir.path(), "*"), &PathResolver::default(), Instant::now(), 10).unwrap();
        assert_eq!(response.truncated(), TruncationReason::Budget);
    }

    #[test]
    fn an_unreadable_subtree_is_reported() {
        let dir = tree(&["file", "closed/file"]);
        chmod(dir.path(), 0o755);
        chmod(&dir.path().join("closed"), 0o000);
        let response = as_nobody(|| glob(&request(dir.path(), "file"), &PathResolver::default())).unwrap();
        let elsewhere =
            as_nobody(|| glob(&request(dir.path(), "other/*"), &PathResolver::default())).unwrap();
        chmod(&dir.path().join("closed"), 0o755);
        assert_eq!((response.matches.len(), response.truncated()), (1, TruncationReason::Unreadable));
        assert_eq!(elsewhere.truncated(), TruncationReason::Unspecified);
    }

    #[test]
    fn a_root_that_is_not_a_directory_is_refused() {
        let dir = tree(&["file"]);
        assert_eq!(
            code(glob(&request(&dir.path().join("file"), "*"), &PathResolver::default())),
            ErrorCode::NotADirectory
        );
        assert_eq!(
            code(glob(&request(&dir.path().join("no"), "*"), &PathResolver::default())),
            ErrorCode::NotFound
        );
        assert_eq!(
            code(glob(&request(dir.path(), "../*"), &PathResolver::default())),
            ErrorCode::InvalidArgument
        );
    }
}
