//! A file's bytes in parts, and their checksum.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;

use bytes::Bytes;
use sandpod_protocol::v1::{ErrorCode, Trailer};
use sandpod_protocol::{Checksum, Failure, limits};

use super::facts::Facts;
use super::paths::refused;

/// The parts of a file, read when they are asked for. The trailer is last, and comes only if the file
/// did not change on the way: without it a file is not whole.
pub(super) struct Sending {
    path: PathBuf,
    file: File,
    at_start: Facts,
    checksum: Checksum,
    sent: u64,
}

pub(super) enum Piece {
    Chunk(Bytes),
    Trailer(Trailer),
}

impl Sending {
    pub(super) fn new(path: PathBuf, file: File, at_start: Facts) -> Self {
        Self { path, file, at_start, checksum: Checksum::default(), sent: 0 }
    }

    pub(super) fn next(&mut self) -> Result<Piece, Failure> {
        let mut chunk = Vec::with_capacity(limits::CHUNK_BYTES);
        let read = self.file.by_ref().take(limits::CHUNK_BYTES as u64).read_to_end(&mut chunk);
        let read = read.map_err(refused("read", &self.path))?;
        if read == 0 {
            return self.trailer().map(Piece::Trailer);
        }
        self.sent += read as u64;
        if self.sent > self.at_start.size {
            return Err(self.changed());
        }
        self.checksum.update(&chunk);
        Ok(Piece::Chunk(chunk.into()))
    }

    fn trailer(&mut self) -> Result<Trailer, Failure> {
        let now = rustix::fs::fstat(&self.file).map_err(|errno| refused("read", &self.path)(errno.into()))?;
        let now = Facts::from(now);
        if self.sent != now.size
            || (now.size, now.modified_ns) != (self.at_start.size, self.at_start.modified_ns)
        {
            return Err(self.changed());
        }
        Ok(Trailer { checksum: std::mem::take(&mut self.checksum).finish() })
    }

    fn changed(&self) -> Failure {
        let path = self.path.to_string_lossy();
        let message =
            format!("'{path}' changed while it was read: download it again when it rests, or a copy of it");
        Failure::new(ErrorCode::Changed, message).at(path)
    }
}
