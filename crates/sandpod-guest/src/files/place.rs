//! Where a path leads: an opened directory and a name in it.
//!
//! The kernel resolves a path once, and all that is done afterwards is done relative to the directory
//! that it found, so that nothing put in the way meanwhile leads elsewhere. What the policy says is asked of
//! that directory's real location. Where the kernel has no `openat2`, the path is walked step by step, with the
//! same outcome. The kernel's own links (`/proc/self/fd/3`), which lead where no path does, are refused.

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

use super::at_hand::at_hand;
use super::facts::Facts;
use super::journal;
use super::notes::Notes;
use super::paths::absolute;
use super::rules::{Access, FileRules};
use crate::without::Without;

/// The links in a row that the kernel follows.
const MAX_LINKS: usize = 40;
/// The steps of one walk: more than the longest path has, with links in it.
const MAX_STEPS: usize = 20_000;
const PROC_SUPER_MAGIC: u64 = 0x9fa0;
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// What a new directory may have, before the umask.
pub(super) const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);

/// What a call does to a path: for the policy, and for the sentence that says it can't.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purpose {
    pub(crate) doing: &'static str,
    pub(crate) access: Access,
}

impl Purpose {
    pub(crate) const LOOK: Self = Self { doing: "look at", access: Access::Read };
    pub(crate) const LIST: Self = Self { doing: "list", access: Access::Read };
    pub(crate) const READ: Self = Self { doing: "read", access: Access::Read };
    pub(crate) const SEARCH: Self = Self { doing: "search", access: Access::Read };
    pub(crate) const WRITE: Self = Self { doing: "write", access: Access::Change };
    pub(crate) const EDIT: Self = Self { doing: "edit", access: Access::Change };
    pub(crate) const DELETE: Self = Self { doing: "delete", access: Access::ChangeWhole };
    pub(crate) const MOVE: Self = Self { doing: "move", access: Access::ChangeWhole };
}

/// How file calls get at files: by which rules, and in which of two ways.
#[derive(Clone)]
pub(crate) struct Reach {
    rules: Arc<FileRules>,
    by_kernel: bool,
    state_dir: Arc<Path>,
    pub(super) notes: Notes,
}

impl Reach {
    /// Without rules. What a crash would leave is noted in the state directory.
    pub(crate) fn new(state_dir: &Path, without: Without) -> Self {
        let (rules, by_kernel, notes) = (Arc::default(), resolves(without), Notes::new(state_dir));
        Self { rules, by_kernel, state_dir: state_dir.into(), notes }
    }

    /// The same by these rules.
    pub(crate) fn by(&self, rules: Arc<FileRules>) -> Self {
        Self { rules, ..self.clone() }
    }

    /// Puts in order what a guest before left when it was killed. Nobody is at work yet.
    pub(crate) fn repair(&self) {
        journal::repair(self);
        self.notes.clean();
    }

    /// Where the guest keeps what it must not forget.
    pub(super) fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// Whether the kernel resolves paths in one step.
    pub(crate) fn is_by_kernel(&self) -> bool {
        self.by_kernel
    }

    pub(crate) fn rules(&self) -> &FileRules {
        &self.rules
    }

    /// What is behind a path, if that can be said without waiting.
    pub(super) fn at_hand(&self, path: &str) -> Option<Facts> {
        if self.by_kernel { at_hand(&absolute(path).ok()?) } else { None }
    }

    /// The place of what a path names; of a link, not of what it leads to.
    pub(crate) fn at(&self, path: &str, purpose: Purpose) -> Result<Place, Failure> {
        self.place_at(absolute(path)?, purpose)
    }

    /// [`at`](Self::at) for a path of our own.
    pub(super) fn place_at(&self, path: PathBuf, purpose: Purpose) -> Result<Place, Failure> {
        self.place(path, purpose, Links::Kept, Missing::Stays)
    }

    /// The place behind all links.
    pub(crate) fn behind(&self, path: &str, purpose: Purpose) -> Result<Place, Failure> {
        self.place_behind(absolute(path)?, purpose)
    }

    /// [`behind`](Self::behind) for a path of our own.
    pub(crate) fn place_behind(&self, path: PathBuf, purpose: Purpose) -> Result<Place, Failure> {
        self.place(path, purpose, Links::Followed, Missing::Stays)
    }

    /// The place behind all links, also one that leads nowhere yet; directories above it are made.
    pub(crate) fn made(&self, path: &str, purpose: Purpose) -> Result<Place, Failure> {
        let asked = absolute(path)?;
        if path.ends_with('/') || asked.file_name().is_none() {
            let message = format!("'{path}' names a directory: name a file in it");
            return Err(Failure::new(ErrorCode::IsDirectory, message).at(path));
        }
        self.place(asked, purpose, Links::Followed, Missing::Made)
    }

    /// [`made`](Self::made), but for a link at its end, which is meant itself.
    pub(crate) fn made_at(&self, path: &str, purpose: Purpose) -> Result<Place, Failure> {
        self.place(absolute(path)?, purpose, Links::Kept, Missing::Made)
    }

    /// Opens the directory that a path leads to; it is made, with those above it, if it is not there.
    pub(super) fn made_directory(&self, path: &str, purpose: Purpose) -> Result<(OwnedFd, PathBuf), Failure> {
        let asked = Asked { path: absolute(path)?, purpose };
        let dir = self.directory(None, &asked.path, Missing::Made, &asked)?;
        self.check(dir.as_fd(), OsStr::new("."), &asked)?;
        Ok((dir, asked.path))
    }

    /// Opens a directory below another. No link is followed, and the path has no `..`.
    pub(crate) fn below(&self, root: &OwnedFd, path: &Path) -> rustix::io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        if self.by_kernel {
            return rustix::fs::openat2(root, path, DIRECTORY, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        }
        let mut here = rustix::fs::openat(root, ".", DIRECTORY, Mode::empty())?;
        for step in steps_of(path) {
            here = rustix::fs::openat(&here, &step, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
        }
        Ok(here)
    }

    /// The place of a name in an open directory; a link is meant itself.
    pub(crate) fn place_in(
        &self,
        dir: Arc<OwnedFd>,
        name: &OsStr,
        path: PathBuf,
        purpose: Purpose,
    ) -> Result<Place, Failure> {
        let asked = Asked { path, purpose };
        self.check(dir.as_fd(), name, &asked)?;
        let mut place = Place { dir, name: name.to_owned(), asked, found: None };
        place.found = place.now()?;
        Ok(place)
    }

    fn place(
        &self,
        asked: PathBuf,
        purpose: Purpose,
        links: Links,
        missing: Missing,
    ) -> Result<Place, Failure> {
        let asked = Asked { path: asked, purpose };
        let mut path = asked.path.clone();
        let mut base = None;
        for _ in 0..MAX_LINKS {
            // Without a last name it is the directory itself.
            let (parent, name) = match (path.parent(), path.file_name()) {
                (Some(parent), Some(name)) => (parent, name.to_owned()),
                _ => (path.as_path(), ".".into()),
            };
            let dir = self.directory(base.as_ref(), parent, missing, &asked)?;
            let found = facts_at(&dir, &name);
            if links == Links::Followed && found.is_ok_and(|found| found.is_link()) {
                let link = read_link(dir.as_fd(), &name).map_err(|errno| asked.refused(errno))?;
                check_magic(dir.as_fd(), &link).map_err(|errno| asked.refused(errno))?;
                path = link.components().collect();
                base = Some(dir);
                continue;
            }
            self.check(dir.as_fd(), &name, &asked)?;
            let found = match found {
                Err(Errno::NOENT) => None,
                found => Some(found.map_err(|errno| asked.refused(errno))?),
            };
            return Ok(Place { dir: dir.into(), name, asked, found });
        }
        Err(asked.too_many_links())
    }

    /// Opens a directory, from `base` if the path is relative.
    fn directory(
        &self,
        base: Option<&OwnedFd>,
        path: &Path,
        missing: Missing,
        asked: &Asked,
    ) -> Result<OwnedFd, Failure> {
        let found = if self.by_kernel {
            let base = base.map_or(CWD, AsFd::as_fd);
            let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
            rustix::fs::openat2(base, path, DIRECTORY, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
                .map_err(Stop::Errno)
        } else {
            self.walk(base, path, Missing::Stays, asked)
        };
        let found = match found {
            // The walk makes what is missing, and knows where it ended: whether something is there is not for
            // those to know who may not look.
            Err(Stop::Errno(_)) if missing == Missing::Made || !self.rules.are_none() => {
                self.walk(base, path, missing, asked)
            }
            found => found,
        };
        found.map_err(|stop| match stop {
            Stop::Failure(failure) => failure,
            Stop::Errno(errno) => asked.refused(errno),
        })
    }

    /// Opens a directory step by step.
    fn walk(
        &self,
        base: Option<&OwnedFd>,
        path: &Path,
        missing: Missing,
        asked: &Asked,
    ) -> Result<OwnedFd, Stop> {
        let mut here = match base {
            Some(base) if !path.is_absolute() => rustix::fs::openat(base, ".", DIRECTORY, Mode::empty())?,
            _ => top()?,
        };
        let (mut steps, mut links) = (steps_of(path), 0);
        for _ in 0..MAX_STEPS {
            let Some(step) = steps.pop_front() else { return Ok(here) };
            let next = rustix::fs::openat(&here, &step, DIRECTORY | OFlags::NOFOLLOW, Mode::empty());
            let next = match next {
                Ok(next) => Next::Directory(next),
                Err(errno) => self.around(errno, &here, &step, missing, asked)?,
            };
            match next {
                Next::Directory(next) => here = next,
                Next::Link(_) if links == MAX_LINKS => break,
                Next::Link(link) => {
                    links += 1;
                    if link.is_absolute() {
                        here = top()?;
                    }
                    steps_of(&link).into_iter().rev().for_each(|step| steps.push_front(step));
                }
                Next::Again => steps.push_front(step),
            }
        }
        Err(Errno::LOOP.into())
    }

    /// How a walk goes on where a step is not simply a directory.
    fn around(
        &self,
        errno: Errno,
        here: &OwnedFd,
        step: &OsStr,
        missing: Missing,
        asked: &Asked,
    ) -> Result<Next, Stop> {
        if let (Errno::NOTDIR | Errno::LOOP, Ok(link)) = (errno, read_link(here.as_fd(), step)) {
            check_magic(here.as_fd(), &link)?;
            return Ok(Next::Link(link));
        }
        self.check(here.as_fd(), step, asked).map_err(Stop::Failure)?;
        if errno != Errno::NOENT || missing == Missing::Stays {
            return Err(errno.into());
        }
        match rustix::fs::mkdirat(here, step, DIRECTORY_MODE) {
            Ok(()) | Err(Errno::EXIST) => Ok(Next::Again),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Asks the policy about a name in a directory.
    fn check(&self, dir: BorrowedFd<'_>, name: &OsStr, asked: &Asked) -> Result<(), Failure> {
        if self.rules.are_none() {
            return Ok(());
        }
        let real = real_path(dir).map_err(|errno| asked.refused(errno))?;
        let real = if name == "." { real } else { real.join(name) };
        if self.rules.allow(&real, asked.purpose.access) { Ok(()) } else { Err(asked.forbidden()) }
    }
}

/// What becomes of a link at the end of a path.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Links {
    Kept,
    Followed,
}

/// What becomes of a directory that is not there.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Missing {
    Stays,
    Made,
}

/// What a step of a walk leads to.
enum Next {
    Directory(OwnedFd),
    Link(PathBuf),
    /// It was made.
    Again,
}

/// Why a path leads nowhere.
enum Stop {
    Errno(Errno),
    Failure(Failure),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// Whether the kernel resolves paths for us. Some sandboxes refuse calls that they do not know.
fn resolves(without: Without) -> bool {
    let probe = || rustix::fs::openat2(CWD, "/", DIRECTORY, Mode::empty(), ResolveFlags::NO_MAGICLINKS);
    !without.openat2 && probe().is_ok()
}

fn top() -> rustix::io::Result<OwnedFd> {
    rustix::fs::open("/", DIRECTORY, Mode::empty())
}

fn steps_of(path: &Path) -> VecDeque<OsString> {
    let step = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(step).collect()
}

/// Where a link leads, by its text.
pub(super) fn read_link(dir: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<PathBuf> {
    let target = rustix::fs::readlinkat(dir, name, Vec::new())?;
    Ok(OsString::from_vec(target.into_bytes()).into())
}

/// Refuses a link of the kernel's own: its text is not where it leads.
fn check_magic(dir: BorrowedFd<'_>, link: &Path) -> rustix::io::Result<()> {
    let can_be = link.is_absolute() || link.as_os_str().as_bytes().contains(&b':');
    let on_proc = || Ok::<_, Errno>(u64::try_from(rustix::fs::fstatfs(dir)?.f_type) == Ok(PROC_SUPER_MAGIC));
    if can_be && on_proc()? { Err(Errno::LOOP) } else { Ok(()) }
}

/// Where an opened directory is now.
pub(super) fn real_path(dir: BorrowedFd<'_>) -> rustix::io::Result<PathBuf> {
    read_link(CWD, OsStr::new(&own_fd(dir)))
}

/// A path that leads to what is opened, whatever is where it was.
pub(super) fn own_fd(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

pub(crate) fn facts_at(dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<Facts> {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map(Facts::from)
}

/// What a caller named, and what for.
#[derive(Clone, Debug)]
struct Asked {
    path: PathBuf,
    purpose: Purpose,
}

impl Asked {
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
pub(crate) struct Place {
    dir: Arc<OwnedFd>,
    name: OsString,
    asked: Asked,
    /// What was there when it was found.
    found: Option<Facts>,
}

impl Place {
    /// The path as it was asked for.
    pub(crate) fn path(&self) -> &Path {
        &self.asked.path
    }

    pub(crate) fn dir(&self) -> &Arc<OwnedFd> {
        &self.dir
    }

    /// The last name; `.` for a directory that has none, as the root.
    pub(crate) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Says that the kernel refused it.
    pub(crate) fn refused(&self, error: impl Into<io::Error>) -> Failure {
        super::paths::refused(self.asked.purpose.doing, &self.asked.path)(error.into())
    }

    /// What was there when the path was resolved.
    pub(crate) fn found(&self) -> Result<Facts, Failure> {
        self.found.ok_or_else(|| self.asked.refused(Errno::NOENT))
    }

    /// What is there now, if anything is.
    pub(crate) fn now(&self) -> Result<Option<Facts>, Failure> {
        match facts_at(&self.dir, &self.name) {
            Err(Errno::NOENT) => Ok(None),
            facts => Ok(Some(facts.map_err(|errno| self.asked.refused(errno))?)),
        }
    }

    /// Opens what is there, if that is no link.
    pub(crate) fn open(&self, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.dir, &self.name, flags, Mode::empty())
    }

    /// Opens the regular file that was found for reading.
    pub(crate) fn open_regular(&self) -> Result<(File, Facts), Failure> {
        self.open_if_regular(self.found()?)
    }

    /// Opens the regular file that is there now.
    pub(crate) fn reopen_regular(&self) -> Result<(File, Facts), Failure> {
        self.open_if_regular(self.now()?.ok_or_else(|| self.refused(Errno::NOENT))?)
    }

    fn open_if_regular(&self, seen: Facts) -> Result<(File, Facts), Failure> {
        // Before opening, too: that a device is opened can have an effect, and a socket can't be.
        seen.check_regular(&self.asked.path)?;
        let file = self.open(OFlags::RDONLY).map_err(|errno| self.refused(errno))?;
        let facts = Facts::from(rustix::fs::fstat(&file).map_err(|errno| self.refused(errno))?);
        facts.check_regular(&self.asked.path)?;
        Ok((file.into(), facts))
    }

    /// Opens a directory for reading.
    pub(crate) fn open_directory(&self) -> Result<OwnedFd, Failure> {
        if !self.found()?.is_directory() {
            return Err(self.refused(Errno::NOTDIR));
        }
        self.open(OFlags::RDONLY | OFlags::DIRECTORY).map_err(|errno| self.refused(errno))
    }

    /// The text of the link that is there.
    pub(crate) fn link_target(&self) -> Result<PathBuf, Failure> {
        read_link(self.dir.as_fd(), &self.name).map_err(|errno| self.refused(errno))
    }

    /// Where it really is.
    pub(crate) fn real_path(&self) -> Result<PathBuf, Failure> {
        let dir = real_path(self.dir.as_fd()).map_err(|errno| self.refused(errno))?;
        Ok(if self.name == "." { dir } else { dir.join(&self.name) })
    }
}

#[cfg(test)]
impl Default for Reach {
    fn default() -> Self {
        Self::new(&std::env::temp_dir().join("sandpod-test-state"), super::testing::without())
    }
}

#[cfg(test)]
mod tests;
