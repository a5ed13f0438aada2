//! Reads a local directory for an upload.

use std::fs::{self, File, Metadata, ReadDir};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use sandpod_protocol::v1::upload_tree_request::Part;
use sandpod_protocol::v1::{FileKind, Trailer, TreeEntry, TreeSummary};
use sandpod_protocol::{Checksum, limits};

use super::TreeProgress;
use super::names::to_bytes;
use crate::error::Error;

/// Reads the parts of a tree as they are needed.
pub(super) struct TreeReader {
    root: PathBuf,
    levels: Vec<(ReadDir, PathBuf)>,
    file: Option<Sending>,
    summary: TreeSummary,
    done: bool,
}

struct Sending {
    path: PathBuf,
    file: File,
    left: u64,
    checksum: Checksum,
}

impl TreeReader {
    pub(super) fn new(root: &Path) -> Result<Self, Error> {
        let entries = fs::read_dir(root).map_err(|error| unreadable(root, &error))?;
        let levels = vec![(entries, PathBuf::new())];
        Ok(Self { root: root.to_owned(), levels, file: None, summary: TreeSummary::default(), done: false })
    }

    pub(super) fn progress(&self) -> TreeProgress {
        let TreeSummary { files, directories, links, bytes, .. } = self.summary;
        TreeProgress { entries: files + directories + links, bytes }
    }

    /// Returns the next part; `None` after the summary.
    pub(super) fn next(&mut self) -> Result<Option<Part>, Error> {
        if self.done {
            return Ok(None);
        }
        if self.file.is_some() {
            return self.content().map(Some);
        }
        while let Some((entries, path)) = self.levels.last_mut() {
            let Some(entry) = entries.next() else {
                self.levels.pop();
                continue;
            };
            let entry = entry.map_err(|error| unreadable(&self.root.join(&path), &error))?;
            let path = path.join(entry.file_name());
            if let Some(entry) =
                self.entry(&path).map_err(|error| unreadable(&self.root.join(&path), &error))?
            {
                return Ok(Some(Part::Entry(entry)));
            }
        }
        self.done = true;
        Ok(Some(Part::Summary(self.summary)))
    }

    /// Returns the entry of a path; `None` for a type of file that is not transferred.
    fn entry(&mut self, path: &Path) -> io::Result<Option<TreeEntry>> {
        let full = self.root.join(path);
        let mut metadata = fs::symlink_metadata(&full)?;
        let (mut kind, mut link_target) = (FileKind::Other, Vec::new());
        if metadata.is_dir() {
            kind = FileKind::Directory;
            self.levels.push((fs::read_dir(&full)?, path.to_owned()));
            self.summary.directories += 1;
        } else if metadata.is_symlink() {
            kind = FileKind::Link;
            link_target = fs::read_link(&full)?.into_os_string().into_encoded_bytes();
            self.summary.links += 1;
        } else if metadata.is_file() {
            let file = File::open(&full)?;
            metadata = file.metadata()?;
            kind = FileKind::File;
            self.file =
                Some(Sending { path: full, file, left: metadata.len(), checksum: Checksum::default() });
            self.summary.files += 1;
        }
        if kind == FileKind::Other {
            self.summary.skipped += 1;
            return Ok(None);
        }
        Ok(Some(TreeEntry {
            path: to_bytes(path).into(),
            kind: kind.into(),
            mode: mode(&metadata),
            modified_ns: modified_ns(&metadata),
            size: if kind == FileKind::File { metadata.len() } else { 0 },
            link_target: link_target.into(),
        }))
    }

    /// Returns the next chunk of the current file, or its trailer.
    fn content(&mut self) -> Result<Part, Error> {
        let Some(mut sending) = self.file.take() else { return Ok(Part::Summary(self.summary)) };
        let mut chunk = Vec::new();
        let most = sending.left.min(limits::CHUNK_BYTES as u64);
        let read = sending.file.by_ref().take(most).read_to_end(&mut chunk);
        let read = read.map_err(|error| unreadable(&sending.path, &error))? as u64;
        if read < most {
            let path = sending.path.display();
            return Err(Error::Local(format!(
                "the file {path} shrank during the upload. Upload it again when no process writes to it"
            )));
        }
        if read == 0 {
            return Ok(Part::Trailer(Trailer { checksum: sending.checksum.finish() }));
        }
        sending.left -= read;
        sending.checksum.update(&chunk);
        self.summary.bytes += read;
        self.file = Some(sending);
        Ok(Part::Chunk(chunk.into()))
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    Error::of_local_file(format!("cannot read {} for the upload: {error}", path.display()), error)
}

#[cfg(unix)]
fn mode(metadata: &Metadata) -> u32 {
    std::os::unix::fs::MetadataExt::mode(metadata) & 0o7777
}

#[cfg(not(unix))]
fn mode(metadata: &Metadata) -> u32 {
    if metadata.is_dir() { 0o755 } else { 0o644 }
}

/// Returns the modification time in nanoseconds since 1970; 0 where the system has none.
fn modified_ns(metadata: &Metadata) -> i64 {
    let Ok(time) = metadata.modified() else { return 0 };
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |nanos| -nanos),
    }
}
