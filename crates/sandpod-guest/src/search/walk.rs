//! Visits everything below a directory within a time limit, with several threads if possible.
//!
//! Directories are opened relative to the root and without following links, so that a concurrent replacement cannot lead
//! a search elsewhere.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::fs::{FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;
use sandpod_protocol::Failure;
use sandpod_protocol::v1::FileKind;
use tokio::time::Instant;

use crate::files::{Location, PathResolver, stat_at};

/// The kernel's file systems at the top of the tree, which contain no user's files.
const KERNEL_DIRS: [&str; 3] = ["dev", "proc", "sys"];
/// Maximum number of threads of one walk, and of all walks beyond the first thread of each.
const MAX_THREADS: usize = 4;
const MAX_HELPERS: usize = 16;
/// Buffer size for reading a directory.
const NAMES_BYTES: usize = 16 << 10;

/// Why a walk did not visit everything.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Incomplete {
    pub(super) out_of_time: bool,
    pub(super) unreadable: bool,
}

/// An entry below the root that is not a directory.
pub(super) struct WalkEntry<'a> {
    pub(super) dir: &'a Arc<OwnedFd>,
    pub(super) name: &'a OsStr,
    /// Path below the root.
    pub(super) path: &'a Path,
    pub(super) kind: FileKind,
}

/// Visits all entries below `root` that are not directories, in any order and from several threads, each with a visitor
/// of its own. Skips directories for which `enters` returns false; does not follow links.
pub(super) fn walk<V: FnMut(&WalkEntry<'_>) -> ControlFlow<()>>(
    root: &Location,
    resolver: &PathResolver,
    deadline: Instant,
    enters: impl Fn(&Path) -> bool + Sync,
    visitor: impl Fn() -> V + Sync,
) -> Result<Incomplete, Failure> {
    let walk = Walk {
        root: root.open_directory()?,
        is_file_system_root: root.real_path()? == Path::new("/"),
        resolver,
        deadline,
        queue: Mutex::new(Queue { directories: vec![PathBuf::new()], busy: 0 }),
        changed: Condvar::new(),
        stopped: AtomicBool::new(false),
        out_of_time: AtomicBool::new(false),
        unreadable: AtomicBool::new(false),
    };
    let helpers = HelperThreads::take();
    let work = || walk.work(&enters, visitor());
    std::thread::scope(|scope| {
        for _ in 0..helpers.count {
            // If a thread cannot be started, the others do its work.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    Ok(Incomplete { out_of_time: walk.out_of_time.into_inner(), unreadable: walk.unreadable.into_inner() })
}

struct Walk<'a> {
    root: OwnedFd,
    is_file_system_root: bool,
    resolver: &'a PathResolver,
    deadline: Instant,
    queue: Mutex<Queue>,
    changed: Condvar,
    stopped: AtomicBool,
    out_of_time: AtomicBool,
    unreadable: AtomicBool,
}

/// Directories to visit.
struct Queue {
    directories: Vec<PathBuf>,
    /// Number of threads that may add more.
    busy: usize,
}

impl Walk<'_> {
    /// Visits directories until none is left.
    fn work(
        &self,
        enters: &impl Fn(&Path) -> bool,
        mut visit: impl FnMut(&WalkEntry<'_>) -> ControlFlow<()>,
    ) {
        while let Some(directory) = self.next() {
            match self.visit_directory(&directory, enters, &mut visit) {
                // Removed meanwhile.
                Ok(ControlFlow::Continue(())) | Err(Errno::NOENT) => {}
                Ok(ControlFlow::Break(())) => self.stopped.store(true, Relaxed),
                Err(_) => self.unreadable.store(true, Relaxed),
            }
            self.queue().busy -= 1;
            self.changed.notify_all();
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next directory. Returns `None` when none is left and no thread can add more.
    fn next(&self) -> Option<PathBuf> {
        let mut queue = self.queue();
        while queue.directories.is_empty() && queue.busy > 0 && !self.stopped.load(Relaxed) {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        let next = queue.directories.pop().filter(|_| !self.stopped.load(Relaxed))?;
        queue.busy += 1;
        Some(next)
    }

    fn visit_directory(
        &self,
        directory: &Path,
        enters: &impl Fn(&Path) -> bool,
        visit: &mut impl FnMut(&WalkEntry<'_>) -> ControlFlow<()>,
    ) -> rustix::io::Result<ControlFlow<()>> {
        let dir = self.resolver.open_below(&self.root, directory)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = Arc::new(rustix::fs::openat(&dir, ".", flags, Mode::empty())?);
        let mut path = directory.to_owned();
        let mut found = Vec::new();
        let mut names = [MaybeUninit::uninit(); NAMES_BYTES];
        let mut entries = RawDir::new(&dir, &mut names);
        loop {
            // The clock is read only when the next names are read from the kernel.
            let reads_kernel = entries.is_buffer_empty();
            if self.stopped.load(Relaxed) || reads_kernel && self.is_out_of_time() {
                return Ok(ControlFlow::Break(()));
            }
            let Some(entry) = entries.next().transpose()? else { break };
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            path.push(name);
            match kind(&dir, name, entry.file_type()) {
                FileKind::Directory if self.is_kernel_dir(&path) || !enters(&path) => {}
                FileKind::Directory => found.push(path.clone()),
                kind => {
                    if visit(&WalkEntry { dir: &dir, name, path: &path, kind }).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
            path.pop();
        }
        self.queue().directories.append(&mut found);
        Ok(ControlFlow::Continue(()))
    }

    fn is_out_of_time(&self) -> bool {
        let is_expired = Instant::now() >= self.deadline;
        self.out_of_time.fetch_or(is_expired, Relaxed);
        is_expired
    }

    fn is_kernel_dir(&self, path: &Path) -> bool {
        self.is_file_system_root && KERNEL_DIRS.iter().any(|name| path == Path::new(name))
    }
}

/// Returns the kind of an entry, with a stat if the directory listing does not contain it.
fn kind(dir: &OwnedFd, name: &OsStr, listed: FileType) -> FileKind {
    match listed {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Link,
        FileType::Unknown => stat_at(dir, name).map_or(FileKind::Other, |stat| stat.kind),
        _ => FileKind::Other,
    }
}

/// Additional threads for a walk, as many as processors and other walks permit.
struct HelperThreads {
    count: usize,
}

static HELPERS: AtomicUsize = AtomicUsize::new(MAX_HELPERS);

impl HelperThreads {
    fn take() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let wanted = processors.min(MAX_THREADS) - 1;
        let before = HELPERS.fetch_update(Relaxed, Relaxed, |free| Some(free.saturating_sub(wanted)));
        Self { count: before.unwrap_or_default().min(wanted) }
    }
}

impl Drop for HelperThreads {
    fn drop(&mut self) {
        HELPERS.fetch_add(self.count, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use sandpod_protocol::limits::SEARCH_BUDGET;

    use super::*;
    use crate::files::Purpose;
    use crate::files::testing::{as_nobody, chmod};

    fn paths(
        root: &Path,
        deadline: Instant,
        enters: impl Fn(&Path) -> bool + Sync,
    ) -> (Vec<String>, Incomplete) {
        let paths = Mutex::new(Vec::new());
        let visitor = || {
            |entry: &WalkEntry<'_>| {
                paths.lock().unwrap().push(entry.path.to_str().unwrap().to_owned());
                ControlFlow::Continue(())
            }
        };
        let resolver = PathResolver::default();
        let root = resolver.resolve(root.to_str().unwrap(), Purpose::SEARCH).unwrap();
        let incomplete = walk(&root, &resolver, deadline, enters, visitor).unwrap();
        let mut paths = paths.into_inner().unwrap();
        paths.sort();
        (paths, incomplete)
    }

    #[test]
    fn everything_is_visited_except_unwanted_directories_and_link_targets() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a/b", "no/c"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("file"), "").unwrap();
        }
        symlink("a", dir.path().join("link")).unwrap();
        let deadline = Instant::now() + SEARCH_BUDGET;
        let found = paths(dir.path(), deadline, |path| !path.ends_with("no"));
        assert_eq!(found, (vec!["a/b/file".to_owned(), "link".to_owned()], Incomplete::default()));
    }

    #[test]
    fn walks_share_helper_threads_and_work_without_them() {
        let many: Vec<_> = (0..100).map(|_| HelperThreads::take()).collect();
        assert!(many.iter().map(|helpers| helpers.count).sum::<usize>() <= MAX_HELPERS);
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let deadline = Instant::now() + SEARCH_BUDGET;
        assert_eq!(paths(dir.path(), deadline, |_| true).0, ["file"]);
        drop(many);
        assert!(HelperThreads::take().count < MAX_THREADS);
    }

    #[test]
    fn a_walk_ends_when_its_time_is_up() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let (found, incomplete) = paths(dir.path(), Instant::now(), |_| true);
        assert!(found.is_empty() && incomplete.out_of_time);
    }

    #[test]
    fn unreadable_directories_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        chmod(dir.path(), 0o755);
        fs::create_dir(dir.path().join("closed")).unwrap();
        chmod(&dir.path().join("closed"), 0o000);
        fs::write(dir.path().join("file"), "").unwrap();
        let deadline = Instant::now() + SEARCH_BUDGET;
        let (found, incomplete) = as_nobody(|| paths(dir.path(), deadline, |_| true));
        chmod(&dir.path().join("closed"), 0o755);
        assert_eq!(found, ["file"]);
        assert!(incomplete.unreadable && !incomplete.out_of_time);
    }

    #[test]
    fn kernel_directories_are_skipped_at_the_file_system_root() {
        let deadline = Instant::now() + Duration::from_secs(5);
        let entered = Mutex::new(Vec::new());
        paths(Path::new("/"), deadline, |path| {
            entered.lock().unwrap().push(path.to_owned());
            false
        });
        let entered = entered.into_inner().unwrap();
        assert!(entered.iter().any(|path| path == Path::new("tmp")));
        assert!(
            !entered.iter().any(|path| KERNEL_DIRS.iter().any(|name| path.starts_with(name))),
            "{entered:?}"
        );
    }
}
