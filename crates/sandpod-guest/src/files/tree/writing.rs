//! Writing a directory and all below it as it arrives.
//!
//! Each file is whole or not there. No link is followed below the root, also none that the tree itself
//! brought: a tree that writes through one is refused.

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

use crate::files::notes::{Notes, Temporary};
use crate::files::place::{Place, Purpose, Reach};
use crate::files::staged::Staged;

/// A tree as far as it is here.
pub(crate) struct Writing {
    reach: Reach,
    root: OwnedFd,
    /// As it was asked for.
    path: PathBuf,
    /// The directories that the last entry is below. They get their mode and time when they are left, because
    /// what is written into them changes the one and may need another than the other.
    entered: Vec<TreeEntry>,
    file: Option<Receiving>,
    seen: TreeSummary,
    is_whole: bool,
}

/// A file as far as it is here.
struct Receiving {
    entry: TreeEntry,
    staged: Staged,
    checksum: Checksum,
    bytes: u64,
}

impl Writing {
    /// Begins a tree in a directory, which is made if it is not there.
    pub(crate) fn new(path: &str, mode: Option<u32>, reach: &Reach) -> Result<Self, Failure> {
        let (root, path) = reach.made_directory(path, Purpose::WRITE)?;
        if let Some(mode) = mode {
            set_mode(&root, OsStr::new("."), mode).map_err(|errno| refused(&path, errno))?;
        }
        Ok(Self::into(root, path, reach))
    }

    /// Begins a tree in a directory that is open.
    pub(crate) fn into(root: OwnedFd, path: PathBuf, reach: &Reach) -> Self {
        let seen = TreeSummary::default();
        let reach = reach.clone();
        Self { reach, root, path, entered: Vec::new(), file: None, seen, is_whole: false }
    }

    /// Takes the next part.
    pub(crate) fn take(&mut self, part: Part) -> Result<(), Failure> {
        match (part, self.file.take()) {
            _ if self.is_whole => Err(self.disorder("nothing comes after its summary")),
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

    /// What was written, if it is all.
    pub(crate) fn finish(self) -> Result<TreeSummary, Failure> {
        if self.is_whole { Ok(self.seen) } else { Err(self.disorder("this one ended without its summary")) }
    }

    fn entry(&mut self, entry: TreeEntry) -> Result<(), Failure> {
        let relative = self.relative(&entry)?.to_owned();
        self.leave_up_to(&relative)?;
        let place = self.place(&relative)?;
        match entry.kind() {
            FileKind::Directory => {
                make_directory(&place)?;
                self.seen.directories += 1;
                self.entered.push(entry);
            }
            FileKind::Link => {
                let target = OsStr::from_bytes(&entry.link_target);
                make_link(&place, target, entry.modified_ns, &self.reach.notes)?;
                self.seen.links += 1;
            }
            FileKind::File => {
                if place.now()?.is_some_and(|found| found.is_link()) {
                    // The link goes, not what it leads to.
                    let removed = rustix::fs::unlinkat(place.dir(), place.name(), AtFlags::empty());
                    removed.map_err(|errno| place.refused(errno))?;
                }
                let staged = Staged::new(Arc::new(place), &self.reach.notes, Some(entry.mode))?;
                self.file = Some(Receiving { entry, staged, checksum: Checksum::default(), bytes: 0 });
            }
            FileKind::Other | FileKind::Unspecified => {
                return Err(self.disorder("it has files, directories and links only"));
            }
        }
        Ok(())
    }

    /// The entry's path, if it stays below the root.
    fn relative<'e>(&self, entry: &'e TreeEntry) -> Result<&'e Path, Failure> {
        let path = Path::new(OsStr::from_bytes(&entry.path));
        let mut normal = PathBuf::new();
        for component in path.components() {
            match component {
                Component::Normal(name) => normal.push(name),
                _ => normal.push("/"), // never the same as the path
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

    /// The place of an entry: no link leads to it.
    fn place(&self, relative: &Path) -> Result<Place, Failure> {
        let path = self.path.join(relative);
        let parent = relative.parent().unwrap_or(Path::new(""));
        let dir = self.reach.below(&self.root, parent).map_err(|errno| match errno {
            Errno::LOOP | Errno::NOTDIR => {
                let message = format!(
                    "'{}' is not written: what is above it is no directory but a link or a file, and a tree \
                     follows no links",
                    path.display()
                );
                Failure::new(ErrorCode::NotADirectory, message).at(path.to_string_lossy())
            }
            errno => refused(&path, errno),
        })?;
        self.reach.place_in(dir.into(), relative.file_name().unwrap_or_default(), path, Purpose::WRITE)
    }

    fn end_file(&mut self, file: Receiving, trailer: &Trailer) -> Result<(), Failure> {
        if file.bytes != file.entry.size || file.checksum.finish() != trailer.checksum {
            return Err(self.damaged(&file.entry.path));
        }
        let time = modification(file.entry.modified_ns);
        rustix::fs::futimens(file.staged.file(), &time)
            .map_err(|errno| file.staged.place().refused(errno))?;
        self.seen.files += 1;
        self.seen.bytes += file.bytes;
        file.staged.commit_in_turn()?;
        Ok(())
    }

    /// Leaves the directories that this entry is not below.
    fn leave_up_to(&mut self, relative: &Path) -> Result<(), Failure> {
        while let Some(entry) = self.entered.pop_if(|entry| {
            let above = Path::new(OsStr::from_bytes(&entry.path));
            relative == above || !relative.starts_with(above)
        }) {
            let place = self.place(Path::new(OsStr::from_bytes(&entry.path)))?;
            let settled = settle(place.dir(), place.name(), entry.mode, entry.modified_ns);
            settled.map_err(|errno| place.refused(errno))?;
        }
        Ok(())
    }

    fn end(&mut self, summary: TreeSummary) -> Result<(), Failure> {
        self.leave_up_to(Path::new(""))?;
        self.seen.skipped = summary.skipped;
        if self.seen != summary {
            return Err(self.disorder("its summary counts other entries than came"));
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
        let message = format!("the tree for '{path}' is not whole or in order: {rule}. Upload it again");
        Failure::new(ErrorCode::Corrupt, message).at(path)
    }
}

/// Makes a directory that can be written into, or takes the one that is there.
fn make_directory(place: &Place) -> Result<(), Failure> {
    match rustix::fs::mkdirat(place.dir(), place.name(), Mode::RWXU) {
        Err(Errno::EXIST) if place.now()?.is_some_and(|found| found.is_directory()) => Ok(()),
        Err(Errno::EXIST) => {
            let path = place.path().to_string_lossy();
            let message =
                format!("'{path}' should become a directory, and something else is there: remove it first");
            Err(Failure::new(ErrorCode::NotADirectory, message).at(path))
        }
        made => made.map_err(|errno| place.refused(errno)),
    }
}

fn refused(path: &Path, errno: Errno) -> Failure {
    crate::files::paths::refused("write", path)(errno.into())
}

/// Makes a link, in the place of what is there unless that is a directory.
pub(crate) fn make_link(
    place: &Place,
    target: &OsStr,
    modified_ns: i64,
    notes: &Notes,
) -> Result<(), Failure> {
    let make = || {
        let mut temporary = Temporary::new(place.dir(), notes)?;
        rustix::fs::symlinkat(target, temporary.dir(), temporary.name())?;
        set_time(temporary.dir(), temporary.name(), modified_ns)?;
        temporary.rename(place.dir(), place.name())
    };
    make().map_err(|errno| place.refused(errno))
}

/// Gives a directory the mode and the time that it had.
pub(crate) fn settle(dir: &OwnedFd, name: &OsStr, mode: u32, modified_ns: i64) -> rustix::io::Result<()> {
    set_mode(dir, name, mode)?;
    set_time(dir, name, modified_ns)
}

/// Of what is no link.
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
