//! Writes a directory that a sandbox sends. The sandbox is not trusted: nothing is written outside of the target, and no more
//! than the limits allow.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use sandpod_protocol::v1::download_tree_response::Part;
use sandpod_protocol::v1::{self, DownloadTreeResponse, ErrorCode, FileKind, Trailer, TreeEntry};
use sandpod_protocol::{Checksum, Failure};

use super::names::{below, from_bytes, stays_below};
use super::{TreeLimits, TreeProgress, TreeSummary};
use crate::error::Error;

/// A tree that is being received.
pub(super) struct TreeWriter {
    root: PathBuf,
    limits: TreeLimits,
    /// The directories above the last entry. They get their mode and time when the entries below them are complete.
    entered: Vec<(PathBuf, TreeEntry)>,
    file: Option<Receiving>,
    seen: TreeSummary,
    is_whole: bool,
}

/// A file that is being received, under a temporary name.
struct Receiving {
    path: PathBuf,
    draft: Draft,
    entry: TreeEntry,
    checksum: Checksum,
    bytes: u64,
}

struct Draft {
    path: PathBuf,
    file: File,
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path); // after a success it no longer exists
    }
}

impl TreeWriter {
    pub(super) fn new(root: &Path, limits: TreeLimits) -> Result<Self, Error> {
        fs::create_dir_all(root).map_err(|error| unwritable(root, &error))?;
        let seen = TreeSummary::default();
        Ok(Self { root: root.to_owned(), limits, entered: Vec::new(), file: None, seen, is_whole: false })
    }

    pub(super) fn progress(&self) -> TreeProgress {
        let TreeSummary { files, directories, links, links_left_out, bytes, .. } = self.seen;
        TreeProgress { entries: files + directories + links + links_left_out, bytes }
    }

    /// Processes the next message.
    pub(super) fn take(mut self, message: DownloadTreeResponse) -> Result<Self, Error> {
        match (message.part, self.file.take()) {
            _ if self.is_whole => return Err(disorder()),
            (Some(Part::Entry(entry)), None) => self.entry(entry)?,
            (Some(Part::Chunk(chunk)), Some(file)) => self.chunk(file, &chunk)?,
            (Some(Part::Trailer(trailer)), Some(file)) => self.end_file(file, &trailer)?,
            (Some(Part::Summary(summary)), None) => self.end(summary)?,
            _ => return Err(disorder()),
        }
        Ok(self)
    }

    /// Returns the summary if the tree is complete.
    pub(super) fn finish(self) -> Result<TreeSummary, Error> {
        if self.is_whole {
            return Ok(self.seen);
        }
        let message = "the tree is incomplete: it ended early. Download it again";
        Err(Error::Failure(Failure::new(ErrorCode::Corrupt, message)))
    }

    fn entry(&mut self, entry: TreeEntry) -> Result<(), Error> {
        if self.progress().entries >= self.limits.entries {
            return Err(too_much("entries", self.limits.entries));
        }
        let Some(relative) = below(&entry.path) else {
            let shown = String::from_utf8_lossy(&entry.path);
            return Err(Error::Protocol(format!("an entry of a tree has the invalid path {shown:?}")));
        };
        self.leave_up_to(&relative)?;
        self.check_above(&relative)?;
        let path = self.root.join(&relative);
        match entry.kind() {
            FileKind::Directory => {
                make_directory(&path).map_err(|error| unwritable(&path, &error))?;
                self.seen.directories += 1;
                self.entered.push((relative, entry));
            }
            FileKind::Link => self.link(&relative, &path, &entry)?,
            FileKind::File => {
                if entry.size > self.limits.bytes.saturating_sub(self.seen.bytes) {
                    return Err(too_much("bytes", self.limits.bytes));
                }
                let draft = Draft::beside(&path).map_err(|error| unwritable(&path, &error))?;
                self.file = Some(Receiving { path, draft, entry, checksum: Checksum::default(), bytes: 0 });
            }
            FileKind::Other | FileKind::Unspecified => return Err(disorder()),
        }
        Ok(())
    }

    /// Rejects an entry below anything but directories: the sandbox may have sent a link before.
    fn check_above(&self, relative: &Path) -> Result<(), Error> {
        let above = relative.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
        for above in above {
            let path = self.root.join(above);
            let found = fs::symlink_metadata(&path).map_err(|error| unwritable(&path, &error))?;
            if !found.is_dir() {
                let message = format!(
                    "the path {} is a link or a file instead of a directory, and a download follows no links. \
                     Remove it, or download to a new directory",
                    path.display()
                );
                return Err(Error::Local(message));
            }
        }
        Ok(())
    }

    fn link(&mut self, relative: &Path, path: &Path, entry: &TreeEntry) -> Result<(), Error> {
        let depth = relative.components().count() - 1;
        let target = from_bytes(&entry.link_target).map(PathBuf::from);
        let made = match target.filter(|target| stays_below(target, depth)) {
            Some(target) => make_link(&target, path).map_err(|error| unwritable(path, &error))?,
            None => false,
        };
        let count = if made { &mut self.seen.links } else { &mut self.seen.links_left_out };
        *count += 1;
        Ok(())
    }

    fn chunk(&mut self, mut file: Receiving, chunk: &Bytes) -> Result<(), Error> {
        file.bytes += chunk.len() as u64;
        if chunk.is_empty() || file.bytes > file.entry.size {
            return Err(Error::Protocol("a file of a tree differs from its announced size".to_owned()));
        }
        file.draft.file.write_all(chunk).map_err(|error| unwritable(&file.path, &error))?;
        file.checksum.update(chunk);
        self.seen.bytes += chunk.len() as u64;
        self.file = Some(file);
        Ok(())
    }

    fn end_file(&mut self, file: Receiving, trailer: &Trailer) -> Result<(), Error> {
        if file.bytes != file.entry.size || file.checksum.finish() != trailer.checksum {
            let message = format!(
                "the file {} is damaged and was not written: its checksum differs. Download it again",
                file.path.display()
            );
            return Err(Error::Failure(Failure::new(ErrorCode::Corrupt, message)));
        }
        let settle = || {
            file.draft.file.set_modified(time(file.entry.modified_ns))?;
            set_mode(&file.draft.path, file.entry.mode)?;
            fs::rename(&file.draft.path, &file.path)
        };
        settle().map_err(|error| unwritable(&file.path, &error))?;
        self.seen.files += 1;
        Ok(())
    }

    /// Sets mode and time of the directories that this entry is not below.
    fn leave_up_to(&mut self, relative: &Path) -> Result<(), Error> {
        let is_left =
            |above: &mut (PathBuf, TreeEntry)| relative == above.0 || !relative.starts_with(&above.0);
        while let Some((left, entry)) = self.entered.pop_if(is_left) {
            // The sandbox may have replaced it since.
            self.check_above(&left.join("."))?;
            let path = self.root.join(left);
            let settle = || {
                // Some systems have no modification times of directories.
                let _ = File::open(&path).and_then(|dir| dir.set_modified(time(entry.modified_ns)));
                set_mode(&path, entry.mode)
            };
            settle().map_err(|error| unwritable(&path, &error))?;
        }
        Ok(())
    }

    fn end(&mut self, summary: v1::TreeSummary) -> Result<(), Error> {
        self.leave_up_to(Path::new(""))?;
        self.seen.skipped = summary.skipped;
        let v1::TreeSummary { files, directories, links, bytes, .. } = summary;
        let seen = &self.seen;
        let links_seen = seen.links + seen.links_left_out;
        if (seen.files, seen.directories, links_seen, seen.bytes) != (files, directories, links, bytes) {
            return Err(Error::Protocol("the summary of a tree differs from its entries".to_owned()));
        }
        self.is_whole = true;
        Ok(())
    }
}

impl Draft {
    fn beside(path: &Path) -> io::Result<Self> {
        let path = path.with_file_name(format!(".sandpod-{}", uuid::Uuid::new_v4().simple()));
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        Ok(Self { path, file })
    }
}

fn make_directory(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let is_directory = fs::symlink_metadata(path)?.is_dir();
            if is_directory { Ok(()) } else { Err(io::ErrorKind::NotADirectory.into()) }
        }
        made => made,
    }
}

/// Creates a link and replaces what is there, unless that is a directory. Returns false on systems without links.
#[cfg(unix)]
fn make_link(target: &Path, path: &Path) -> io::Result<bool> {
    let draft = path.with_file_name(format!(".sandpod-{}", uuid::Uuid::new_v4().simple()));
    std::os::unix::fs::symlink(target, &draft)?;
    let renamed = fs::rename(&draft, path);
    if renamed.is_err() {
        let _ = fs::remove_file(draft);
    }
    renamed.map(|()| true)
}

#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "other systems can fail")]
fn make_link(_: &Path, _: &Path) -> io::Result<bool> {
    Ok(false)
}

/// Sets the permission bits, without setuid, setgid and sticky.
#[cfg(unix)]
fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode & 0o777))
}

#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "other systems can fail")]
fn set_mode(_: &Path, _: u32) -> io::Result<()> {
    Ok(())
}

fn time(modified_ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(modified_ns.unsigned_abs());
    let time =
        if modified_ns < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) };
    time.unwrap_or(UNIX_EPOCH)
}

fn unwritable(path: &Path, error: &io::Error) -> Error {
    let message = format!("cannot write {}: {error}. Check the target and try again", path.display());
    Error::of_local_file(message, error)
}

fn disorder() -> Error {
    Error::Protocol("the parts of a tree are out of order".to_owned())
}

fn too_much(what: &str, most: u64) -> Error {
    let message = format!("the tree has more than {most} {what}: raise the limit, or download less at once");
    Error::Failure(Failure::new(ErrorCode::TooLarge, message))
}
