//! Going through all that is below a directory, within a budget, on several processors where there are.
//!
//! Directories are opened below the root that was opened first and without following links, so that nothing put in the
//! way meanwhile leads a search elsewhere.

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

/// What the kernel shows at the top of the tree that is no file of anybody's.
const KERNEL_DIRS: [&str; 3] = ["dev", "proc", "sys"];
/// The threads of one walk, and those of all walks beyond the first of each.
const MAX_THREADS: usize = 4;
const MAX_HELPERS: usize = 16;
/// What is read of a directory at once.
const NAMES_BYTES: usize = 16 << 10;

/// What a walk did not see.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Missed {
    pub(super) out_of_time: bool,
    pub(super) unreadable: bool,
}

/// Something below the root that is no directory.
pub(super) struct Entry<'a> {
    pub(super) dir: &'a Arc<OwnedFd>,
    pub(super) name: &'a OsStr,
    /// Below the root.
    pub(super) path: &'a Path,
    pub(super) kind: FileKind,
}

/// Visits all entries below `root` that are no directories, in no order and from several threads, each with a visitor
/// of its own. Directories that `enters` does not want are left out; links are not followed.
pub(super) fn walk<V: FnMut(&Entry<'_>) -> ControlFlow<()>>(
    root: &Location,
    resolver: &PathResolver,
    deadline: Instant,
    enters: impl Fn(&Path) -> bool + Sync,
    visitor: impl Fn() -> V + Sync,
) -> Result<Missed, Failure> {
    let walk = Walk {
        root: root.open_directory()?,
        at_top: root.real_path()? == Path::new("/"),
        resolver,
        deadline,
        ahead: Mutex::new(Ahead { directories: vec![PathBuf::new()], at_work: 0 }),
        changed: Condvar::new(),
        over: AtomicBool::new(false),
        out_of_time: AtomicBool::new(false),
        unreadable: AtomicBool::new(false),
    };
    let helpers = Helpers::take();
    let work = || walk.work(&enters, visitor());
    std::thread::scope(|scope| {
        for _ in 0..helpers.count {
            // A thread that there is no room for is not missed: the others do its work.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    Ok(Missed { out_of_time: walk.out_of_time.into_inner(), unreadable: walk.unreadable.into_inner() })
}

struct Walk<'a> {
    root: OwnedFd,
    at_top: bool,
    resolver: &'a PathResolver,
    deadline: Instant,
    ahead: Mutex<Ahead>,
    changed: Condvar,
    over: AtomicBool,
    out_of_time: AtomicBool,
    unreadable: AtomicBool,
}

/// What is still to be done.
struct Ahead {
    directories: Vec<PathBuf>,
    /// The threads that may find more.
    at_work: usize,
}

impl Walk<'_> {
    /// Goes through directories until none is left.
    fn work(&self, enters: &impl Fn(&Path) -> bool, mut visit: impl FnMut(&Entry<'_>) -> ControlFlow<()>) {
        while let Some(directory) = self.next() {
            match self.go_through(&directory, enters, &mut visit) {
                // What was removed meanwhile is not missed.
                Ok(ControlFlow::Continue(())) | Err(Errno::NOENT) => {}
                Ok(ControlFlow::Break(())) => self.over.store(true, Relaxed),
                Err(_) => self.unreadable.store(true, Relaxed),
            }
            self.ahead().at_work -= 1;
            self.changed.notify_all();
        }
    }

    fn ahead(&self) -> MutexGuard<'_, Ahead> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A directory to go through; none when there is nothing left, and nobody who could find more.
    fn next(&self) -> Option<PathBuf> {
        let mut ahead = self.ahead();
        while ahead.directories.is_empty() && ahead.at_work > 0 && !self.over.load(Relaxed) {
            ahead = self.changed.wait(ahead).unwrap_or_else(PoisonError::into_inner);
        }
        let next = ahead.directories.pop().filter(|_| !self.over.load(Relaxed))?;
        ahead.at_work += 1;
        Some(next)
    }

    fn go_through(
        &self,
        directory: &Path,
        enters: &impl Fn(&Path) -> bool,
        visit: &mut impl FnMut(&Entry<'_>) -> ControlFlow<()>,
    ) -> rustix::io::Result<ControlFlow<()>> {
        let dir = self.resolver.open_below(&self.root, directory)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = Arc::new(rustix::fs::openat(&dir, ".", flags, Mode::empty())?);
        let mut path = directory.to_owned();
        let mut found = Vec::new();
        let mut names = [MaybeUninit::uninit(); NAMES_BYTES];
        let mut entries = RawDir::new(&dir, &mut names);
        loop {
            // Where the kernel is asked anyway, the clock may be too.
            let asks = entries.is_buffer_empty();
            if self.over.load(Relaxed) || asks && self.is_out_of_time() {
                return Ok(ControlFlow::Break(()));
            }
            let Some(entry) = entries.next().transpose()? else { break };
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            path.push(name);
            match kind(&dir, name, entry.file_type()) {
                FileKind::Directory if self.is_of_kernel(&path) || !enters(&path) => {}
                FileKind::Directory => found.push(path.clone()),
                kind => {
                    if visit(&Entry { dir: &dir, name, path: &path, kind }).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
            path.pop();
        }
        self.ahead().directories.append(&mut found);
        Ok(ControlFlow::Continue(()))
    }

    fn is_out_of_time(&self) -> bool {
        let is_over = Instant::now() >= self.deadline;
        self.out_of_time.fetch_or(is_over, Relaxed);
        is_over
    }

    fn is_of_kernel(&self, path: &Path) -> bool {
        self.at_top && KERNEL_DIRS.iter().any(|name| path == Path::new(name))
    }
}

/// What an entry is. Some file systems leave it to who asks.
fn kind(dir: &OwnedFd, name: &OsStr, listed: FileType) -> FileKind {
    match listed {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Link,
        FileType::Unknown => stat_at(dir, name).map_or(FileKind::Other, |stat| stat.kind),
        _ => FileKind::Other,
    }
}

/// Threads beyond the first, as many as processors and other walks leave.
struct Helpers {
    count: usize,
}

static HELPERS: AtomicUsize = AtomicUsize::new(MAX_HELPERS);

impl Helpers {
    fn take() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let wanted = processors.min(MAX_THREADS) - 1;
        let before = HELPERS.fetch_update(Relaxed, Relaxed, |free| Some(free.saturating_sub(wanted)));
        Self { count: before.unwrap_or_default().min(wanted) }
    }
}

impl Drop for Helpers {
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

    fn paths(root: &Path, deadline: Instant, enters: impl Fn(&Path) -> bool + Sync) -> (Vec<String>, Missed) {
        let paths = Mutex::new(Vec::new());
        let visitor = || {
            |entry: &Entry<'_>| {
                paths.lock().unwrap().push(entry.path.to_str().unwrap().to_owned());
                ControlFlow::Continue(())
            }
        };
        let resolver = PathResolver::default();
        let root = resolver.resolve(root.to_str().unwrap(), Purpose::SEARCH).unwrap();
        let missed = walk(&root, &resolver, deadline, enters, visitor).unwrap();
        let mut paths = paths.into_inner().unwrap();
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
    fn walks_share_their_helpers_and_each_goes_on_without() {
        let many: Vec<_> = (0..100).map(|_| Helpers::take()).collect();
        assert!(many.iter().map(|helpers| helpers.count).sum::<usize>() <= MAX_HELPERS);
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let deadline = Instant::now() + SEARCH_BUDGET;
        assert_eq!(paths(dir.path(), deadline, |_| true).0, ["file"]);
        drop(many);
        assert!(Helpers::take().count < MAX_THREADS);
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
