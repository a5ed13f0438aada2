//! Going through all that is below a directory, within a budget.

use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::Path;

use tokio::time::Instant;
use walkdir::{DirEntry, WalkDir};

/// What the kernel shows at the top of the tree that is no file of anybody's.
const KERNEL_DIRS: [&str; 3] = ["dev", "proc", "sys"];

/// What a walk did not see.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Missed {
    pub(super) out_of_time: bool,
    pub(super) unreadable: bool,
}

/// Visits all entries below `root` that are no directories, with their paths below it, in no order.
/// Directories that `enters` does not want are left out; links are not followed.
pub(super) fn walk(
    root: &Path,
    deadline: Instant,
    enters: impl Fn(&Path) -> bool,
    mut visit: impl FnMut(&DirEntry, &Path) -> ControlFlow<()>,
) -> Missed {
    let at_top = root.canonicalize().is_ok_and(|root| root == Path::new("/"));
    let below = |entry: &DirEntry| entry.path().strip_prefix(root).unwrap_or(entry.path()).to_owned();
    let wanted = |entry: &DirEntry| {
        let path = below(entry);
        let of_kernel =
            at_top && entry.depth() == 1 && KERNEL_DIRS.iter().any(|name| path == Path::new(name));
        !entry.file_type().is_dir() || !of_kernel && enters(&path)
    };
    let mut missed = Missed::default();
    for entry in WalkDir::new(root).min_depth(1).into_iter().filter_entry(wanted) {
        if Instant::now() >= deadline {
            missed.out_of_time = true;
            break;
        }
        match entry {
            Ok(entry) if entry.file_type().is_dir() => {}
            Ok(entry) => {
                if visit(&entry, &below(&entry)).is_break() {
                    break;
                }
            }
            Err(error) => {
                // What was removed meanwhile is not missed.
                missed.unreadable |= error.io_error().is_none_or(|error| error.kind() != ErrorKind::NotFound);
            }
        }
    }
    missed
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use sandpod_protocol::limits::SEARCH_BUDGET;

    use super::*;
    use crate::files::testing::{as_nobody, chmod};

    fn paths(root: &Path, deadline: Instant, enters: impl Fn(&Path) -> bool) -> (Vec<String>, Missed) {
        let mut paths = Vec::new();
        let missed = walk(root, deadline, enters, |_, path| {
            paths.push(path.to_str().unwrap().to_owned());
            ControlFlow::Continue(())
        });
        paths.sort();
        (paths, missed)
    }

    #[test]
    fn all_below_the_root_is_visited_but_unwanted_directories_and_what_links_lead_to() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a/b", "no/c"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("file"), "").unwrap();
        }
        symlink("a", dir.path().join("link")).unwrap();
        let deadline = Instant::now() + SEARCH_BUDGET;
        let found = paths(dir.path(), deadline, |path| !path.ends_with("no"));
        assert_eq!(found, (vec!["a/b/file".to_owned(), "link".to_owned()], Missed::default()));
    }

    #[test]
    fn a_walk_ends_when_its_time_is_up() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let (found, missed) = paths(dir.path(), Instant::now(), |_| true);
        assert!(found.is_empty() && missed.out_of_time);
    }

    #[test]
    fn what_can_not_be_read_is_missed() {
        let dir = tempfile::tempdir().unwrap();
        chmod(dir.path(), 0o755);
        fs::create_dir(dir.path().join("closed")).unwrap();
        chmod(&dir.path().join("closed"), 0o000);
        fs::write(dir.path().join("file"), "").unwrap();
        let deadline = Instant::now() + SEARCH_BUDGET;
        let (found, missed) = as_nobody(|| paths(dir.path(), deadline, |_| true));
        chmod(&dir.path().join("closed"), 0o755);
        assert_eq!(found, ["file"]);
        assert!(missed.unreadable && !missed.out_of_time);
    }

    #[test]
    fn the_kernels_directories_are_left_out_of_the_whole_tree() {
        let deadline = Instant::now() + Duration::from_secs(5);
        let entered = std::cell::RefCell::new(Vec::new());
        walk(
            Path::new("/"),
            deadline,
            |path| {
                entered.borrow_mut().push(path.to_owned());
                false
            },
            |_, _| ControlFlow::Continue(()),
        );
        let entered = entered.into_inner();
        assert!(entered.iter().any(|path| path == Path::new("tmp")));
        assert!(
            !entered.iter().any(|path| KERNEL_DIRS.iter().any(|name| path.starts_with(name))),
            "{entered:?}"
        );
    }
}
