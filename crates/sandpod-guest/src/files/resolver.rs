//! Resolves a path to an opened directory and a name in it.
//!
//! The kernel resolves a path once, and all further operations are relative to the directory that it found, so that a
//! concurrent replacement of a parent cannot redirect them. The policy is checked against that directory's real path.
//! Without `openat2`, the path is walked component by component, with the same result. The kernel's magic links
//! (`/proc/self/fd/3`) are refused, because they do not lead to the path in their text.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use sandpod_protocol::Failure;
use sandpod_protocol::v1::ErrorCode;

use super::cached_lookup::cached_lookup;
use super::file_stat::FileStat;
use super::journal;
use super::paths::absolute;
use super::rules::{Access, FileRules};
use super::temp_journal::TempJournal;
use crate::disabled_kernel_features::DisabledKernelFeatures;

/// Maximum number of links in a row, as in the kernel.
const MAX_LINKS: usize = 40;
/// Maximum number of components in one walk: more than the longest path has, including links.
const MAX_STEPS: usize = 20_000;
const PROC_SUPER_MAGIC: u64 = 0x9fa0;
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Mode of a new directory, before the umask.
pub(super) const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);

/// The purpose of a call, for the policy and for error messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purpose {
    pub(crate) doing: &'static str,
    pub(crate) access: Access,
}

impl Purpose {
    pub(crate) const STAT: Self = Self { doing: "look at", access: Access::Read };
    pub(crate) const LIST: Self = Self { doing: "list", access: Access::Read };
    pub(crate) const READ: Self = Self { doing: "read", access: Access::Read };
    pub(crate) const SEARCH: Self = Self { doing: "search", access: Access::Read };
    pub(crate) const WRITE: Self = Self { doing: "write", access: Access::Change };
    pub(crate) const EDIT: Self = Self { doing: "edit", access: Access::Change };
    pub(crate) const DELETE: Self = Self { doing: "delete", access: Access::ChangeTree };
    pub(crate) const MOVE: Self = Self { doing: "move", access: Access::ChangeTree };
}

/// Resolves paths by the rules of a policy, with or without `openat2`.
#[derive(Clone)]
pub(crate) struct PathResolver {
    rules: Arc<FileRules>,
    use_openat2: bool,
    state_dir: Arc<Path>,
    pub(super) temp_journal: TempJournal,
}

impl PathResolver {
    /// Makes a resolver without rules. Temporary files are recorded in the state directory.
    pub(crate) fn new(state_dir: &Path, disabled: DisabledKernelFeatures) -> Self {
        let (rules, use_openat2, temp_journal) =
            (Arc::default(), has_openat2(disabled), TempJournal::new(state_dir));
        Self { rules, use_openat2, state_dir: state_dir.into(), temp_journal }
    }

    /// Returns a resolver with these rules.
    pub(crate) fn with_rules(&self, rules: Arc<FileRules>) -> Self {
        Self { rules, ..self.clone() }
    }

    /// Cleans up after an earlier guest that was killed. Call it before any other work.
    pub(crate) fn recover(&self) {
        journal::recover(self);
        self.temp_journal.clean();
    }

    /// Returns the directory of the guest's state.
    pub(super) fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// Returns whether the kernel resolves paths.
    pub(crate) fn uses_openat2(&self) -> bool {
        self.use_openat2
    }

    pub(crate) fn rules(&self) -> &FileRules {
        &self.rules
    }

    /// Returns the stat of a path if the kernel has it cached.
    pub(super) fn cached_lookup(&self, path: &str) -> Option<FileStat> {
        if self.use_openat2 { cached_lookup(&absolute(path).ok()?) } else { None }
    }

    /// Resolves a path; a link at its end is not followed.
    pub(crate) fn resolve_nofollow(&self, path: &str, purpose: Purpose) -> Result<Location, Failure> {
        self.resolve_own_nofollow(absolute(path)?, purpose)
    }

    /// [`resolve_nofollow`](Self::resolve_nofollow) for a validated path.
    pub(super) fn resolve_own_nofollow(&self, path: PathBuf, purpose: Purpose) -> Result<Location, Failure> {
        self.locate(path, purpose, LastLink::Keep, Missing::Fail)
    }

    /// Resolves a path and follows all links.
    pub(crate) fn resolve(&self, path: &str, purpose: Purpose) -> Result<Location, Failure> {
        self.resolve_own(absolute(path)?, purpose)
    }

    /// [`resolve`](Self::resolve) for a validated path.
    pub(crate) fn resolve_own(&self, path: PathBuf, purpose: Purpose) -> Result<Location, Failure> {
        self.locate(path, purpose, LastLink::Follow, Missing::Fail)
    }

    /// Resolves a path and follows all links; it need not exist. Creates the directories above it.
    pub(crate) fn resolve_for_create(&self, path: &str, purpose: Purpose) -> Result<Location, Failure> {
        let requested = absolute(path)?;
        if path.ends_with('/') || requested.file_name().is_none() {
            let message = format!("'{path}' names a directory: name a file in it");
            return Err(Failure::new(ErrorCode::IsDirectory, message).at(path));
        }
        self.locate(requested, purpose, LastLink::Follow, Missing::Create)
    }

    /// [`resolve_for_create`](Self::resolve_for_create), but a link at the path's end is not followed.
    pub(crate) fn resolve_nofollow_for_create(
        &self,
        path: &str,
        purpose: Purpose,
    ) -> Result<Location, Failure> {
        self.locate(absolute(path)?, purpose, LastLink::Keep, Missing::Create)
    }

    /// Opens a directory, and creates it and those above it if necessary.
    pub(super) fn create_directory(
        &self,
        path: &str,
        purpose: Purpose,
    ) -> Result<(OwnedFd, PathBuf), Failure> {
        let requested = Requested { path: absolute(path)?, purpose };
        let dir = self.directory(None, &requested.path, Missing::Create, &requested)?;
        self.check(dir.as_fd(), OsStr::new("."), &requested)?;
        Ok((dir, requested.path))
    }

    /// Opens a directory below another. Follows no link; the path must not contain `..`.
    pub(crate) fn open_below(&self, root: &OwnedFd, path: &Path) -> rustix::io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        if self.use_openat2 {
            return rustix::fs::openat2(root, path, DIRECTORY, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        }
        let mut here = rustix::fs::openat(root, ".", DIRECTORY, Mode::empty())?;
        for step in components_of(path) {
            here = rustix::fs::openat(&here, &step, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
        }
        Ok(here)
    }

    /// Returns the location of a name in an open directory; a link is not followed.
    pub(crate) fn location_in(
        &self,
        dir: Arc<OwnedFd>,
        name: &OsStr,
        path: PathBuf,
        purpose: Purpose,
    ) -> Result<Location, Failure> {
        let requested = Requested { path, purpose };
        self.check(dir.as_fd(), name, &requested)?;
        let mut location = Location { dir, name: name.to_owned(), requested, found: None };
        location.found = location.stat_now()?;
        Ok(location)
    }

    fn locate(
        &self,
        requested: PathBuf,
        purpose: Purpose,
        links: LastLink,
        missing: Missing,
    ) -> Result<Location, Failure> {
        let requested = Requested { path: requested, purpose };
        let mut path = requested.path.clone();
        let mut base = None;
        for _ in 0..MAX_LINKS {
            // A path without a last name is the directory itself.
            let (parent, name) = match (path.parent(), path.file_name()) {
                (Some(parent), Some(name)) => (parent, name.to_owned()),
                _ => (path.as_path(), ".".into()),
            };
            let dir = self.directory(base.as_ref(), parent, missing, &requested)?;
            let found = stat_at(&dir, &name);
            if links == LastLink::Follow && found.is_ok_and(|found| found.is_link()) {
                let link = read_link(dir.as_fd(), &name).map_err(|errno| requested.refused(errno))?;
                reject_magic_link(dir.as_fd(), &link).map_err(|errno| requested.refused(errno))?;
                path = link.components().collect();
                base = Some(dir);
                continue;
            }
            self.check(dir.as_fd(), &name, &requested)?;
            let found = match found {
                Err(Errno::NOENT) => None,
                found => Some(found.map_err(|errno| requested.refused(errno))?),
            };
            return Ok(Location { dir: dir.into(), name, requested, found });
        }
        Err(requested.too_many_links())
    }

    /// Opens a directory; a relative path starts at `base`.
    fn directory(
        &self,
        base: Option<&OwnedFd>,
        path: &Path,
        missing: Missing,
        requested: &Requested,
    ) -> Result<OwnedFd, Failure> {
        let found = if self.use_openat2 {
            let base = base.map_or(CWD, AsFd::as_fd);
            let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
            rustix::fs::openat2(base, path, DIRECTORY, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
                .map_err(WalkError::Errno)
        } else {
            self.walk(base, path, Missing::Fail, requested)
        };
        let found = match found {
            // The walk creates missing directories. With rules it is also needed on errors, because it reports whether the
            // path was forbidden before it reveals whether it exists.
            Err(WalkError::Errno(_)) if missing == Missing::Create || !self.rules.is_unrestricted() => {
                self.walk(base, path, missing, requested)
            }
            found => found,
        };
        found.map_err(|error| match error {
            WalkError::Failure(failure) => failure,
            WalkError::Errno(errno) => requested.refused(errno),
        })
    }

    /// Opens a directory component by component.
    fn walk(
        &self,
        base: Option<&OwnedFd>,
        path: &Path,
        missing: Missing,
        requested: &Requested,
    ) -> Result<OwnedFd, WalkError> {
        let mut here = match base {
            Some(base) if !path.is_absolute() => rustix::fs::openat(base, ".", DIRECTORY, Mode::empty())?,
            _ => open_root()?,
        };
        let (mut steps, mut links) = (components_of(path), 0);
        for _ in 0..MAX_STEPS {
            let Some(step) = steps.pop_front() else { return Ok(here) };
            let next = rustix::fs::openat(&here, &step, DIRECTORY | OFlags::NOFOLLOW, Mode::empty());
            let next = match next {
                Ok(next) => Step::Directory(next),
                Err(errno) => self.handle_non_directory(errno, &here, &step, missing, requested)?,
            };
            match next {
                Step::Directory(next) => here = next,
                Step::Link(_) if links == MAX_LINKS => break,
                Step::Link(link) => {
                    links += 1;
                    if link.is_absolute() {
                        here = open_root()?;
                    }
                    components_of(&link).into_iter().rev().for_each(|step| steps.push_front(step));
                }
                Step::Created => steps.push_front(step),
            }
        }
        Err(Errno::LOOP.into())
    }

    /// Handles a component that is not simply a directory.
    fn handle_non_directory(
        &self,
        errno: Errno,
        here: &OwnedFd,
        step: &OsStr,
        missing: Missing,
        requested: &Requested,
    ) -> Result<Step, WalkError> {
        if let (Errno::NOTDIR | Errno::LOOP, Ok(link)) = (errno, read_link(here.as_fd(), step)) {
            reject_magic_link(here.as_fd(), &link)?;
            return Ok(Step::Link(link));
        }
        self.check(here.as_fd(), step, requested).map_err(WalkError::Failure)?;
        if errno != Errno::NOENT || missing == Missing::Fail {
            return Err(errno.into());
        }
        match rustix::fs::mkdirat(here, step, DIRECTORY_MODE) {
            Ok(()) | Err(Errno::EXIST) => Ok(Step::Created),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Checks a name in a directory against the policy.
    fn check(&self, dir: BorrowedFd<'_>, name: &OsStr, requested: &Requested) -> Result<(), Failure> {
        if self.rules.is_unrestricted() {
            return Ok(());
        }
        let real = real_path(dir).map_err(|errno| requested.refused(errno))?;
        let real = if name == "." { real } else { real.join(name) };
        if self.rules.allow(&real, requested.purpose.access) { Ok(()) } else { Err(requested.forbidden()) }
    }
}

/// Treatment of a link at the end of a path.
#[derive(Clone, Copy, Eq, PartialEq)]
enum LastLink {
    Keep,
    Follow,
}

/// Treatment of a missing directory.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Missing {
    Fail,
    Create,
}

/// Result of a walk's step.
enum Step {
    Directory(OwnedFd),
    Link(PathBuf),
    /// The directory was created: repeat the step.
    Created,
}

/// Error of a walk.
enum WalkError {
    Errno(Errno),
    Failure(Failure),
}

impl From<Errno> for WalkError {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// Returns whether `openat2` works. Some sandboxes refuse unknown system calls.
fn has_openat2(disabled: DisabledKernelFeatures) -> bool {
    let probe = || rustix::fs::openat2(CWD, "/", DIRECTORY, Mode::empty(), ResolveFlags::NO_MAGICLINKS);
    !disabled.openat2 && probe().is_ok()
}

fn open_root() -> rustix::io::Result<OwnedFd> {
    rustix::fs::open("/", DIRECTORY, Mode::empty())
}

fn components_of(path: &Path) -> VecDeque<OsString> {
    let step = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(step).collect()
}

/// Reads a link's text.
pub(super) fn read_link(dir: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<PathBuf> {
    let target = rustix::fs::readlinkat(dir, name, Vec::new())?;
    Ok(OsString::from_vec(target.into_bytes()).into())
}

/// Refuses a magic link of the kernel, whose text is not its target.
fn reject_magic_link(dir: BorrowedFd<'_>, link: &Path) -> rustix::io::Result<()> {
    let can_be = link.is_absolute() || link.as_os_str().as_bytes().contains(&b':');
    let on_proc = || Ok::<_, Errno>(u64::try_from(rustix::fs::fstatfs(dir)?.f_type) == Ok(PROC_SUPER_MAGIC));
    if can_be && on_proc()? { Err(Errno::LOOP) } else { Ok(()) }
}

/// Returns the current path of an opened directory.
pub(super) fn real_path(dir: BorrowedFd<'_>) -> rustix::io::Result<PathBuf> {
    read_link(CWD, OsStr::new(&own_fd(dir)))
}

/// Returns a path to an opened file, which stays valid if the file is renamed.
pub(super) fn own_fd(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

pub(crate) fn stat_at(dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<FileStat> {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map(FileStat::from)
}

/// A requested path and its purpose.
#[derive(Clone, Debug)]
struct Requested {
    path: PathBuf,
    purpose: Purpose,
}

impl Requested {
    fn refused(&self, errno: Errno) -> Failure {
        if errno == Errno::LOOP {
            return self.too_many_links();
        }
        super::paths::refused(self.purpose.doing, &self.path)(errno.into())
    }

    fn forbidden(&self) -> Failure {
        let path = self.path.to_string_lossy();
        let message = format!(
            "cannot {} '{path}': the policy of this sandbox does not allow it. Use a path that it allows, or have \
             its owner change it",
            self.purpose.doing
        );
        Failure::new(ErrorCode::Policy, message).at(path)
    }

    fn too_many_links(&self) -> Failure {
        let path = self.path.to_string_lossy();
        let message = format!(
            "'{path}' leads through too many links, or through one of the kernel's own: name the file itself"
        );
        Failure::new(ErrorCode::InvalidArgument, message).at(path)
    }
}

/// A name in an opened directory.
#[derive(Debug)]
pub(crate) struct Location {
    dir: Arc<OwnedFd>,
    name: OsString,
    requested: Requested,
    /// Stat at the time of resolution.
    found: Option<FileStat>,
}

impl Location {
    /// Returns the path as requested.
    pub(crate) fn path(&self) -> &Path {
        &self.requested.path
    }

    pub(crate) fn dir(&self) -> &Arc<OwnedFd> {
        &self.dir
    }

    /// Returns the last name, or `.` for a directory without one, such as the root.
    pub(crate) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Builds the failure for a failed system call.
    pub(crate) fn refused(&self, error: impl Into<io::Error>) -> Failure {
        super::paths::refused(self.requested.purpose.doing, &self.requested.path)(error.into())
    }

    /// Returns the stat at the time when the path was resolved.
    pub(crate) fn found(&self) -> Result<FileStat, Failure> {
        self.found.ok_or_else(|| self.requested.refused(Errno::NOENT))
    }

    /// Returns the current stat, or `None` if nothing is there.
    pub(crate) fn stat_now(&self) -> Result<Option<FileStat>, Failure> {
        match stat_at(&self.dir, &self.name) {
            Err(Errno::NOENT) => Ok(None),
            stat => Ok(Some(stat.map_err(|errno| self.requested.refused(errno))?)),
        }
    }

    /// Opens the file; fails for a link.
    pub(crate) fn open(&self, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.dir, &self.name, flags, Mode::empty())
    }

    /// Opens the regular file that was found.
    pub(crate) fn open_regular(&self) -> Result<(File, FileStat), Failure> {
        self.open_if_regular(self.found()?)
    }

    /// Opens the regular file that is there now.
    pub(crate) fn reopen_regular(&self) -> Result<(File, FileStat), Failure> {
        self.open_if_regular(self.stat_now()?.ok_or_else(|| self.refused(Errno::NOENT))?)
    }

    fn open_if_regular(&self, seen: FileStat) -> Result<(File, FileStat), Failure> {
        // Checked before opening, too: opening a device can have an effect, and a socket cannot be opened.
        seen.check_regular(&self.requested.path)?;
        let file = self.open(OFlags::RDONLY).map_err(|errno| self.refused(errno))?;
        let stat = FileStat::from(rustix::fs::fstat(&file).map_err(|errno| self.refused(errno))?);
        stat.check_regular(&self.requested.path)?;
        Ok((file.into(), stat))
    }

    /// Opens a directory for reading.
    pub(crate) fn open_directory(&self) -> Result<OwnedFd, Failure> {
        if !self.found()?.is_directory() {
            return Err(self.refused(Errno::NOTDIR));
        }
        self.open(OFlags::RDONLY | OFlags::DIRECTORY).map_err(|errno| self.refused(errno))
    }

    /// Returns the text of the link.
    pub(crate) fn link_target(&self) -> Result<PathBuf, Failure> {
        read_link(self.dir.as_fd(), &self.name).map_err(|errno| self.refused(errno))
    }

    /// Returns its real path.
    pub(crate) fn real_path(&self) -> Result<PathBuf, Failure> {
        let dir = real_path(self.dir.as_fd()).map_err(|errno| self.refused(errno))?;
        Ok(if self.name == "." { dir } else { dir.join(&self.name) })
    }
}

#[cfg(test)]
impl Default for PathResolver {
    fn default() -> Self {
        Self::new(&std::env::temp_dir().join("sandpod-test-state"), super::testing::disabled_features())
    }
}

#[cfg(test)]
mod tests;
