//! Going through a directory and all below it, to send it.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;
use sandpod_protocol::Failure;
use sandpod_protocol::v1::download_tree_response::Part;
use sandpod_protocol::v1::{ErrorCode, FileKind, TreeEntry, TreeSummary};

use super::MAX_DEPTH;
use crate::files::facts::Facts;
use crate::files::paths::refused;
use crate::files::place::{Place, Purpose, Reach, facts_at, read_link};
use crate::files::rules::Access;
use crate::files::sending::{Piece, Sending};

/// The parts of a tree, read when they are asked for: a directory before what is in it, the summary last.
pub(crate) struct Reading {
    reach: Reach,
    /// As it was asked for.
    path: PathBuf,
    /// Where the root really is, if the policy has a say.
    real: Option<PathBuf>,
    /// The directories that are open, from the root down.
    levels: Vec<Level>,
    file: Option<Sending>,
    summary: TreeSummary,
    done: bool,
}

struct Level {
    fd: OwnedFd,
    entries: Dir,
    /// Below the root.
    path: PathBuf,
}

impl Reading {
    pub(crate) fn new(path: &str, reach: &Reach) -> Result<Self, Failure> {
        Self::of(&reach.behind(path, Purpose::READ)?, reach)
    }

    /// What is below a place.
    pub(crate) fn of(root: &Place, reach: &Reach) -> Result<Self, Failure> {
        let fd = root.open_directory()?;
        let entries = Dir::read_from(&fd).map_err(|errno| root.refused(errno))?;
        let real = if reach.rules().are_none() { None } else { Some(root.real_path()?) };
        let levels = vec![Level { fd, entries, path: PathBuf::new() }];
        let (path, summary) = (root.path().to_owned(), TreeSummary::default());
        Ok(Self { reach: reach.clone(), path, real, levels, file: None, summary, done: false })
    }

    fn refused(&self, path: &Path, errno: Errno) -> Failure {
        refused("read", &self.path.join(path))(errno.into())
    }

    fn next_part(&mut self) -> Result<Part, Failure> {
        if let Some(file) = &mut self.file {
            return Ok(match file.next()? {
                Piece::Chunk(chunk) => {
                    self.summary.bytes += chunk.len() as u64;
                    Part::Chunk(chunk)
                }
                Piece::Trailer(trailer) => {
                    self.file = None;
                    Part::Trailer(trailer)
                }
            });
        }
        while let Some(level) = self.levels.last_mut() {
            let Some(entry) = level.entries.read() else {
                self.levels.pop();
                continue;
            };
            let entry = entry.map_err(|errno| refused("read", &self.path)(errno.into()))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "."
                && name != ".."
                && let Some(entry) = self.entry(name)?
            {
                return Ok(Part::Entry(entry));
            }
        }
        self.done = true;
        Ok(Part::Summary(self.summary))
    }

    /// What is said of a name in the last directory; nothing if no transfer takes it or it is gone.
    fn entry(&mut self, name: &OsStr) -> Result<Option<TreeEntry>, Failure> {
        let Some(level) = self.levels.last() else { return Ok(None) };
        let path = level.path.join(name);
        self.check(&path)?;
        let found = facts_at(&level.fd, name).and_then(|facts| level.open(name, facts));
        let (facts, opened) = match found {
            Err(Errno::NOENT) => return Ok(None), // removed meanwhile
            found => found.map_err(|errno| self.refused(&path, errno))?,
        };
        let mut entry = TreeEntry {
            path: path.as_os_str().as_bytes().to_vec().into(),
            kind: facts.kind.into(),
            mode: facts.mode,
            modified_ns: facts.modified_ns,
            ..TreeEntry::default()
        };
        match opened {
            Opened::File(file) => {
                entry.size = facts.size;
                self.file = Some(Sending::new(self.path.join(&path), file, facts));
                self.summary.files += 1;
            }
            Opened::Directory(fd) => {
                self.enter(fd, path)?;
                self.summary.directories += 1;
            }
            Opened::Link(target) => {
                entry.link_target = target.into_os_string().into_encoded_bytes().into();
                self.summary.links += 1;
            }
            Opened::Other => {
                self.summary.skipped += 1;
                return Ok(None);
            }
        }
        Ok(Some(entry))
    }

    fn enter(&mut self, fd: OwnedFd, path: PathBuf) -> Result<(), Failure> {
        if self.levels.len() >= MAX_DEPTH {
            let root = self.path.to_string_lossy();
            let message = format!("'{root}' has more than {MAX_DEPTH} levels of directories: pack it first");
            return Err(Failure::new(ErrorCode::TooLarge, message).at(root));
        }
        let entries = Dir::read_from(&fd).map_err(|errno| self.refused(&path, errno))?;
        self.levels.push(Level { fd, entries, path });
        Ok(())
    }

    /// A tree comes whole or not at all: what may not be read is not left out.
    fn check(&self, path: &Path) -> Result<(), Failure> {
        let is_allowed = |real: &PathBuf| self.reach.rules().allow(&real.join(path), Access::Read);
        if self.real.as_ref().is_none_or(is_allowed) {
            return Ok(());
        }
        let path = self.path.join(path);
        let path = path.to_string_lossy();
        let message = format!(
            "cannot read '{path}': the policy of this sandbox does not allow it. Take directories that it allows"
        );
        Err(Failure::new(ErrorCode::Policy, message).at(path))
    }
}

impl Level {
    fn open(&self, name: &OsStr, facts: Facts) -> rustix::io::Result<(Facts, Opened)> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = |flags| rustix::fs::openat(&self.fd, name, flags, Mode::empty());
        let opened = match facts.kind {
            FileKind::File => {
                let file = open(flags | OFlags::NOCTTY)?;
                let facts = Facts::from(rustix::fs::fstat(&file)?);
                let opened = if facts.is_file() { Opened::File(file.into()) } else { Opened::Other };
                return Ok((facts, opened));
            }
            FileKind::Directory => Opened::Directory(open(flags | OFlags::DIRECTORY)?),
            FileKind::Link => Opened::Link(read_link(self.fd.as_fd(), name)?),
            FileKind::Other | FileKind::Unspecified => Opened::Other,
        };
        Ok((facts, opened))
    }
}

enum Opened {
    File(File),
    Directory(OwnedFd),
    Link(PathBuf),
    Other,
}

impl Iterator for Reading {
    type Item = Result<Part, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let part = self.next_part();
        self.done |= part.is_err();
        Some(part)
    }
}
