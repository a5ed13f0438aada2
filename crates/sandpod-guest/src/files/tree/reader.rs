//! Reads a directory and all below it, to send it.

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
use crate::files::file_chunks::{FileChunks, FilePart};
use crate::files::file_stat::FileStat;
use crate::files::paths::refused;
use crate::files::resolver::{Location, PathResolver, Purpose, read_link, stat_at};
use crate::files::rules::Access;

/// The parts of a tree, read on demand: a directory before its contents, the summary last.
pub(crate) struct TreeReader {
    resolver: PathResolver,
    /// Path as requested.
    path: PathBuf,
    /// Real path of the root, if there are rules.
    real: Option<PathBuf>,
    /// Open directories, from the root down.
    directories: Vec<OpenDirectory>,
    file: Option<FileChunks>,
    summary: TreeSummary,
    done: bool,
}

struct OpenDirectory {
    fd: OwnedFd,
    entries: Dir,
    /// Path below the root.
    path: PathBuf,
}

impl TreeReader {
    pub(crate) fn new(path: &str, resolver: &PathResolver) -> Result<Self, Failure> {
        Self::at(&resolver.resolve(path, Purpose::READ)?, resolver)
    }

    /// Reads what is below a location.
    pub(crate) fn at(root: &Location, resolver: &PathResolver) -> Result<Self, Failure> {
        let fd = root.open_directory()?;
        let entries = Dir::read_from(&fd).map_err(|errno| root.refused(errno))?;
        let real = if resolver.rules().is_unrestricted() { None } else { Some(root.real_path()?) };
        let directories = vec![OpenDirectory { fd, entries, path: PathBuf::new() }];
        let (path, summary) = (root.path().to_owned(), TreeSummary::default());
        Ok(Self { resolver: resolver.clone(), path, real, directories, file: None, summary, done: false })
    }

    fn refused(&self, path: &Path, errno: Errno) -> Failure {
        refused("read", &self.path.join(path))(errno.into())
    }

    fn next_part(&mut self) -> Result<Part, Failure> {
        if let Some(file) = &mut self.file {
            return Ok(match file.next()? {
                FilePart::Chunk(chunk) => {
                    self.summary.bytes += chunk.len() as u64;
                    Part::Chunk(chunk)
                }
                FilePart::Trailer(trailer) => {
                    self.file = None;
                    Part::Trailer(trailer)
                }
            });
        }
        while let Some(directory) = self.directories.last_mut() {
            let Some(entry) = directory.entries.read() else {
                self.directories.pop();
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

    /// Returns the entry of a name in the last directory, or `None` if it cannot be transferred or was removed.
    fn entry(&mut self, name: &OsStr) -> Result<Option<TreeEntry>, Failure> {
        let Some(directory) = self.directories.last() else { return Ok(None) };
        let path = directory.path.join(name);
        self.check(&path)?;
        let found = stat_at(&directory.fd, name).and_then(|stat| directory.open(name, stat));
        let (stat, opened) = match found {
            Err(Errno::NOENT) => return Ok(None), // removed meanwhile
            found => found.map_err(|errno| self.refused(&path, errno))?,
        };
        let mut entry = TreeEntry {
            path: path.as_os_str().as_bytes().to_vec().into(),
            kind: stat.kind.into(),
            mode: stat.mode,
            modified_ns: stat.modified_ns,
            ..TreeEntry::default()
        };
        match opened {
            Opened::File(file) => {
                entry.size = stat.size;
                self.file = Some(FileChunks::new(self.path.join(&path), file, stat));
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
        if self.directories.len() >= MAX_DEPTH {
            let root = self.path.to_string_lossy();
            let message = format!("'{root}' has more than {MAX_DEPTH} levels of directories: pack it first");
            return Err(Failure::new(ErrorCode::TooLarge, message).at(root));
        }
        let entries = Dir::read_from(&fd).map_err(|errno| self.refused(&path, errno))?;
        self.directories.push(OpenDirectory { fd, entries, path });
        Ok(())
    }

    /// Refuses a forbidden path: a tree is sent completely or not at all.
    fn check(&self, path: &Path) -> Result<(), Failure> {
        let is_allowed = |real: &PathBuf| self.resolver.rules().allow(&real.join(path), Access::Read);
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

impl OpenDirectory {
    fn open(&self, name: &OsStr, stat: FileStat) -> rustix::io::Result<(FileStat, Opened)> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = |flags| rustix::fs::openat(&self.fd, name, flags, Mode::empty());
        let opened = match stat.kind {
            FileKind::File => {
                let file = open(flags | OFlags::NOCTTY)?;
                let stat = FileStat::from(rustix::fs::fstat(&file)?);
                let opened = if stat.is_file() { Opened::File(file.into()) } else { Opened::Other };
                return Ok((stat, opened));
            }
            FileKind::Directory => Opened::Directory(open(flags | OFlags::DIRECTORY)?),
            FileKind::Link => Opened::Link(read_link(self.fd.as_fd(), name)?),
            FileKind::Other | FileKind::Unspecified => Opened::Other,
        };
        Ok((stat, opened))
    }
}

enum Opened {
    File(File),
    Directory(OwnedFd),
    Link(PathBuf),
    Other,
}

impl Iterator for TreeReader {
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
