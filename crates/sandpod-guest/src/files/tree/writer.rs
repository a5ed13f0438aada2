//! Writes a directory and all below it as it arrives.
//!
//! Each file is written completely or not at all. Links below the root are not followed, including those that the tree
//! itself contains: a tree that writes through one is refused.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;
use sandpod_protocol::v1::download_tree_response::Part;
use sandpod_protocol::v1::{ErrorCode, FileKind, Trailer, TreeEntry, TreeSummary};
use sandpod_protocol::{Checksum, Failure, limits};

use crate::files::resolver::{Location, PathResolver, Purpose};
use crate::files::staged::Staged;
use crate::files::temp_journal::{TempJournal, Temporary};

/// A tree that is being received.
pub(crate) struct TreeWriter {
    resolver: PathResolver,
    root: OwnedFd,
    /// Path as requested.
    path: PathBuf,
    /// The directories above the last entry. They get their mode and time when they are left, because
    /// writing into them changes the time and may need another mode.
    entered: Vec<TreeEntry>,
    file: Option<IncomingFile>,
    seen: TreeSummary,
    is_whole: bool,
}

/// A file that is being received.
struct IncomingFile {
    entry: TreeEntry,
    staged: Staged,
    checksum: Checksum,
    bytes: u64,
}

impl TreeWriter {
    /// Begins a tree in a directory, which is created if necessary.
    pub(crate) fn new(path: &str, mode: Option<u32>, resolver: &PathResolver) -> Result<Self, Failure> {
        let (root, path) = resolver.create_directory(path, Purpose::WRITE)?;
        if let Some(mode) = mode {
            set_mode(&root, OsStr::new("."), mode).map_err(|errno| refused(&path, errno))?;
        }
        Ok(Self::into(root, path, resolver))
    }

    /// Begins a tree in an open directory.
    pub(crate) fn into(root: OwnedFd, path: PathBuf, resolver: &PathResolver) -> Self {
        let seen = TreeSummary::default();
        let resolver = resolver.clone();
        Self { resolver, root, path, entered: Vec::new(), file: None, seen, is_whole: false }
    }

    /// Writes the next part.
    pub(crate) fn take(&mut self, part: Part) -> Result<(), Failure> {
        match (part, self.file.take()) {
            _ if self.is_whole => Err(self.disorder("no part may follow the summary")),
            (Part::Entry(entry), None) => self.entry(entry),
            (Part::Chunk(chunk), Some(mut file)) => {
                file.bytes += chunk.len() as u64;
                if file.bytes > file.entry.size {
                    return Err(self.damaged(&file.entry.path));
                }
                file.staged.append(&chunk)?;
                file.checksum.update(&chunk);
                self.file = Some(file);
                Ok(())
            }
            (Part::Trailer(trailer), Some(file)) => self.end_file(file, &trailer),
            (Part::Summary(summary), None) => self.end(summary),
            _ => Err(self.disorder("each file's chunks and trailer follow its entry")),
        }
    }

    /// Returns the summary, if the tree is complete.
    pub(crate) fn finish(self) -> Result<TreeSummary, Failure> {
        if self.is_whole { Ok(self.seen) } else { Err(self.disorder("it ended without its summary")) }
    }

    fn entry(&mut self, entry: TreeEntry) -> Result<(), Failure> {
        let relative = self.relative(&entry)?.to_owned();
        self.leave_up_to(&relative)?;
        let location = self.location(&relative)?;
        match entry.kind() {
            FileKind::Directory => {
                make_directory(&location)?;
                self.seen.directories += 1;
                self.entered.push(entry);
            }
            FileKind::Link => {
                let target = OsStr::from_bytes(&entry.link_target);
                make_link(&location, target, entry.modified_ns, &self.resolver.temp_journal)?;
                self.seen.links += 1;
            }
            FileKind::File => {
                if location.stat_now()?.is_some_and(|found| found.is_link()) {
                    // The link is replaced, not its target.
                    let removed = rustix::fs::unlinkat(location.dir(), location.name(), AtFlags::empty());
                    removed.map_err(|errno| location.refused(errno))?;
                }
                let staged = Staged::new(Arc::new(location), &self.resolver.temp_journal, Some(entry.mode))?;
                self.file = Some(IncomingFile { entry, staged, checksum: Checksum::default(), bytes: 0 });
            }
            FileKind::Other | FileKind::Unspecified => {
                return Err(self.disorder("it has files, directories and links only"));
            }
        }
        Ok(())
    }

    /// Returns the entry's path, if it stays below the root.
    fn relative<'e>(&self, entry: &'e TreeEntry) -> Result<&'e Path, Failure> {
        let path = Path::new(OsStr::from_bytes(&entry.path));
        let mut normal = PathBuf::new();
        for component in path.components() {
            match component {
                Component::Normal(name) => normal.push(name),
                _ => normal.push("/"), // makes it differ from the path
            }
        }
        let is_plain = normal.as_os_str() == path.as_os_str() && !path.is_absolute();
        if is_plain
            && !entry.path.is_empty()
            && entry.path.len() <= limits::MAX_PATH_BYTES
            && !entry.path.contains(&0)
        {
            return Ok(path);
        }
        let shown: String = String::from_utf8_lossy(&entry.path).chars().take(200).collect();
        let message = format!(
            "the tree for '{}' has an entry {shown:?}: entries have names below its root, without '.' and '..', a \
             NUL byte or a slash at an end, and are no longer than a path can be",
            self.path.display()
        );
        Err(Failure::new(ErrorCode::InvalidArgument, message).at(shown))
    }

    /// Returns the location of an entry, without following links.
    fn location(&self, relative: &Path) -> Result<Location, Failure> {
        let path = self.path.join(relative);
        let parent = relative.parent().unwrap_or(Path::new(""));
        let dir = self.resolver.open_below(&self.root, parent).map_err(|errno| match errno {
            Errno::LOOP | Errno::NOTDIR => {
                let message = format!(
                    "'{}' is not written: a directory above it is a link or a file, and a tree follows no links",
                    path.display()
                );
                Failure::new(ErrorCode::NotADirectory, message).at(path.to_string_lossy())
            }
            errno => refused(&path, errno),
        })?;
        self.resolver.location_in(dir.into(), relative.file_name().unwrap_or_default(), path, Purpose::WRITE)
    }

    fn end_file(&mut self, file: IncomingFile, trailer: &Trailer) -> Result<(), Failure> {
        if file.bytes != file.entry.size || file.checksum.finish() != trailer.checksum {
            return Err(self.damaged(&file.entry.path));
        }
        let time = modification(file.entry.modified_ns);
        rustix::fs::futimens(file.staged.file(), &time)
            .map_err(|errno| file.staged.location().refused(errno))?;
        self.seen.files += 1;
        self.seen.bytes += file.bytes;
        file.staged.lock_and_commit()?;
        Ok(())
    }

    /// Leaves the directories that do not contain this entry.
    fn leave_up_to(&mut self, relative: &Path) -> Result<(), Failure> {
        while let Some(entry) = self.entered.pop_if(|entry| {
            let above = Path::new(OsStr::from_bytes(&entry.path));
            relative == above || !relative.starts_with(above)
        }) {
            let location = self.location(Path::new(OsStr::from_bytes(&entry.path)))?;
            let settled = set_mode_and_time(location.dir(), location.name(), entry.mode, entry.modified_ns);
            settled.map_err(|errno| location.refused(errno))?;
        }
        Ok(())
    }

    fn end(&mut self, summary: TreeSummary) -> Result<(), Failure> {
        self.leave_up_to(Path::new(""))?;
        self.seen.skipped = summary.skipped;
        if self.seen != summary {
            return Err(self.disorder("its summary does not match the received entries"));
        }
        self.is_whole = true;
        Ok(())
    }

    fn damaged(&self, path: &[u8]) -> Failure {
        let path = self.path.join(OsStr::from_bytes(path));
        let path = path.to_string_lossy();
        let message =
            format!("the content of '{path}' arrived damaged: it was not written, upload the tree again");
        Failure::new(ErrorCode::Corrupt, message).at(path)
    }

    fn disorder(&self, rule: &str) -> Failure {
        let path = self.path.to_string_lossy();
        let message = format!("the tree for '{path}' is incomplete or out of order: {rule}. Upload it again");
        Failure::new(ErrorCode::Corrupt, message).at(path)
    }
}

/// Creates a directory that can be written into, or accepts an existing one.
fn make_directory(location: &Location) -> Result<(), Failure> {
    match rustix::fs::mkdirat(location.dir(), location.name(), Mode::RWXU) {
        Err(Errno::EXIST) if location.stat_now()?.is_some_and(|found| found.is_directory()) => Ok(()),
        Err(Errno::EXIST) => {
            let path = location.path().to_string_lossy();
            let message = format!(
                "'{path}' cannot become a directory, because something else exists there: remove it first"
            );
            Err(Failure::new(ErrorCode::NotADirectory, message).at(path))
        }
        created => created.map_err(|errno| location.refused(errno)),
    }
}

fn refused(path: &Path, errno: Errno) -> Failure {
    crate::files::paths::refused("write", path)(errno.into())
}

/// Creates a link, which replaces anything but a directory.
pub(crate) fn make_link(
    location: &Location,
    target: &OsStr,
    modified_ns: i64,
    temp_journal: &TempJournal,
) -> Result<(), Failure> {
    let make = || {
        let mut temporary = Temporary::new(location.dir(), temp_journal)?;
        rustix::fs::symlinkat(target, temporary.dir(), temporary.name())?;
        set_time(temporary.dir(), temporary.name(), modified_ns)?;
        temporary.rename(location.dir(), location.name())
    };
    make().map_err(|errno| location.refused(errno))
}

/// Sets the mode and the time of a directory.
pub(crate) fn set_mode_and_time(
    dir: &OwnedFd,
    name: &OsStr,
    mode: u32,
    modified_ns: i64,
) -> rustix::io::Result<()> {
    set_mode(dir, name, mode)?;
    set_time(dir, name, modified_ns)
}

/// Sets the mode of a file or directory that is not a link.
fn set_mode(dir: &OwnedFd, name: &OsStr, mode: u32) -> rustix::io::Result<()> {
    rustix::fs::chmodat(dir, name, Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())
}

fn set_time(dir: &OwnedFd, name: &OsStr, modified_ns: i64) -> rustix::io::Result<()> {
    rustix::fs::utimensat(dir, name, &modification(modified_ns), AtFlags::SYMLINK_NOFOLLOW)
}

fn modification(modified_ns: i64) -> Timestamps {
    let second = 1_000_000_000;
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec {
            tv_sec: modified_ns.div_euclid(second),
            tv_nsec: modified_ns.rem_euclid(second),
        },
    }
}
