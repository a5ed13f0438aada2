//! A file's bytes in chunks, and their checksum.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;

use bytes::Bytes;
use sandpod_protocol::v1::{ErrorCode, Trailer};
use sandpod_protocol::{Checksum, Failure, limits};

use super::file_stat::FileStat;
use super::paths::refused;

/// The chunks of a file, read on demand. The trailer is last, and is sent only if the file did not change
/// meanwhile: without it a transfer is incomplete.
pub(super) struct FileChunks {
    path: PathBuf,
    file: File,
    initial: FileStat,
    checksum: Checksum,
    sent: u64,
}

pub(super) enum FilePart {
    Chunk(Bytes),
    Trailer(Trailer),
}

impl FileChunks {
    pub(super) fn new(path: PathBuf, file: File, initial: FileStat) -> Self {
        Self { path, file, initial, checksum: Checksum::default(), sent: 0 }
    }

    pub(super) fn next(&mut self) -> Result<FilePart, Failure> {
        let mut chunk = Vec::with_capacity(limits::CHUNK_BYTES);
        let read = self.file.by_ref().take(limits::CHUNK_BYTES as u64).read_to_end(&mut chunk);
        let read = read.map_err(refused("read", &self.path))?;
        if read == 0 {
            return self.trailer().map(FilePart::Trailer);
        }
        self.sent += read as u64;
        if self.sent > self.initial.size {
            return Err(self.changed());
        }
        self.checksum.update(&chunk);
        Ok(FilePart::Chunk(chunk.into()))
    }

    fn trailer(&mut self) -> Result<Trailer, Failure> {
        let now = rustix::fs::fstat(&self.file).map_err(|errno| refused("read", &self.path)(errno.into()))?;
        let now = FileStat::from(now);
        if self.sent != now.size
            || (now.size, now.modified_ns) != (self.initial.size, self.initial.modified_ns)
        {
            return Err(self.changed());
        }
        Ok(Trailer { checksum: std::mem::take(&mut self.checksum).finish() })
    }

    fn changed(&self) -> Failure {
        let path = self.path.to_string_lossy();
        let message = format!(
            "'{path}' changed while it was read: download it again when it is stable, or a copy of it"
        );
        Failure::new(ErrorCode::Changed, message).at(path)
    }
}
