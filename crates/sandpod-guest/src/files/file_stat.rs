//! Metadata of a file.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{FileType, Stat};
use sandpod_protocol::Failure;
use sandpod_protocol::v1::{ErrorCode, FileInfo, FileKind};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct FileStat {
    pub(crate) kind: FileKind,
    pub(crate) size: u64,
    /// Permission bits.
    pub(crate) mode: u32,
    pub(crate) modified_ns: i64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Device and inode number: two names with the same identity are one file.
    pub(crate) identity: (u64, u64),
}

impl FileStat {
    pub(crate) fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    pub(crate) fn is_file(&self) -> bool {
        self.kind == FileKind::File
    }

    pub(crate) fn is_link(&self) -> bool {
        self.kind == FileKind::Link
    }

    /// Returns an error unless it is a regular file.
    pub(crate) fn check_regular(&self, path: &Path) -> Result<(), Failure> {
        let (code, what) = match self.kind {
            FileKind::File => return Ok(()),
            FileKind::Directory => (ErrorCode::IsDirectory, "is a directory: name a file in it"),
            _ => (ErrorCode::NotAFile, "is neither a file nor a directory, but a device, a pipe or a socket"),
        };
        Err(Failure::new(code, format!("'{}' {what}", path.display())).at(path.to_string_lossy()))
    }

    /// Converts it for the protocol.
    pub(crate) fn info(&self, path: String) -> FileInfo {
        FileInfo {
            path,
            kind: self.kind.into(),
            size: self.size,
            mode: self.mode,
            modified_ns: self.modified_ns,
            uid: self.uid,
            gid: self.gid,
            link_target: String::new(),
        }
    }
}

fn kind(file_type: FileType) -> FileKind {
    match file_type {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Link,
        _ => FileKind::Other,
    }
}

fn nanoseconds(seconds: i64, nanoseconds: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

impl From<Stat> for FileStat {
    fn from(stat: Stat) -> Self {
        Self {
            kind: kind(FileType::from_raw_mode(stat.st_mode)),
            size: u64::try_from(stat.st_size).unwrap_or_default(),
            mode: stat.st_mode & 0o7777,
            modified_ns: nanoseconds(stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or_default()),
            uid: stat.st_uid,
            gid: stat.st_gid,
            identity: (stat.st_dev, stat.st_ino),
        }
    }
}

impl From<&Metadata> for FileStat {
    fn from(metadata: &Metadata) -> Self {
        Self {
            kind: kind(FileType::from_raw_mode(metadata.mode())),
            size: metadata.len(),
            mode: metadata.mode() & 0o7777,
            modified_ns: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            uid: metadata.uid(),
            gid: metadata.gid(),
            identity: (metadata.dev(), metadata.ino()),
        }
    }
}
