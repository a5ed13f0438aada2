//! Sending a file of any size: what it is, its bytes in parts, their checksum.

use std::fs::File;
use std::io::Read as _;

use sandpod_protocol::v1::download_response::Part;
use sandpod_protocol::v1::{DownloadRequest, ErrorCode, FileInfo, Trailer};
use sandpod_protocol::{Failure, limits};
use sha2::{Digest as _, Sha256};

use super::facts::Facts;
use super::place::{Place, Purpose, Reach};

/// The parts of a download, read when they are asked for. The trailer is last, and comes only if the
/// file did not change on the way: without it a download is not whole.
pub(super) struct Download {
    place: Place,
    file: File,
    at_start: Facts,
    header: Option<FileInfo>,
    hash: Sha256,
    sent: u64,
    done: bool,
}

impl Download {
    pub(super) fn new(request: &DownloadRequest, reach: &Reach) -> Result<Self, Failure> {
        let place = reach.behind(&request.path, Purpose::READ)?;
        let (file, at_start) = place.open_regular()?;
        let header = Some(at_start.info(request.path.clone()));
        Ok(Self { place, file, at_start, header, hash: Sha256::new(), sent: 0, done: false })
    }

    fn read_part(&mut self) -> Result<Part, Failure> {
        let mut chunk = Vec::with_capacity(limits::CHUNK_BYTES);
        let read = self.file.by_ref().take(limits::CHUNK_BYTES as u64).read_to_end(&mut chunk);
        let read = read.map_err(|error| self.place.refused(error))?;
        if read == 0 {
            return self.trailer();
        }
        self.sent += read as u64;
        if self.sent > self.at_start.size {
            return Err(self.changed());
        }
        self.hash.update(&chunk);
        Ok(Part::Chunk(chunk.into()))
    }

    fn trailer(&mut self) -> Result<Part, Failure> {
        let now = Facts::from(rustix::fs::fstat(&self.file).map_err(|errno| self.place.refused(errno))?);
        if self.sent != now.size || now.modified_ns != self.at_start.modified_ns {
            return Err(self.changed());
        }
        self.done = true;
        let checksum = std::mem::take(&mut self.hash).finalize();
        Ok(Part::Trailer(Trailer { checksum: checksum.to_vec().into() }))
    }

    fn changed(&self) -> Failure {
        let path = self.place.path().to_string_lossy();
        let message =
            format!("'{path}' changed while it was read: download it again when it rests, or a copy of it");
        Failure::new(ErrorCode::Changed, message).at(path)
    }
}

impl Iterator for Download {
    type Item = Result<Part, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let part = match self.header.take() {
            Some(header) => Ok(Part::Header(header)),
            None => self.read_part(),
        };
        self.done |= part.is_err();
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use super::*;
    use crate::files::testing::{code, text};

    fn file(content: &[u8]) -> (tempfile::NamedTempFile, DownloadRequest) {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, content).unwrap();
        let request = DownloadRequest { path: text(file.path()) };
        (file, request)
    }

    #[test]
    fn a_file_comes_in_chunks_between_its_header_and_its_checksum() {
        let content: Vec<u8> = (0..=255).cycle().take(limits::CHUNK_BYTES * 2 + 5).collect();
        let (_file, request) = file(&content);
        let parts: Vec<Part> = Download::new(&request, &Reach::default()).unwrap().map(Result::unwrap).collect();
        let [Part::Header(header), Part::Chunk(a), Part::Chunk(b), Part::Chunk(c), Part::Trailer(trailer)] =
            parts.as_slice()
        else {
            panic!("{} parts", parts.len())
        };
        assert_eq!((header.size, &header.path), (content.len() as u64, &request.path));
        assert_eq!((a.len(), c.len()), (limits::CHUNK_BYTES, 5));
        assert_eq!([a.as_ref(), b, c].concat(), content);
        assert_eq!(trailer.checksum, Sha256::digest(&content).to_vec());
    }

    #[test]
    fn an_empty_file_has_a_header_and_a_checksum() {
        let (_file, request) = file(b"");
        let parts: Vec<Part> = Download::new(&request, &Reach::default()).unwrap().map(Result::unwrap).collect();
        assert!(matches!(parts.as_slice(), [Part::Header(_), Part::Trailer(_)]), "{parts:?}");
    }

    #[test]
    fn a_file_that_changes_on_the_way_ends_in_an_error() {
        let changes: [fn(&mut File); 3] = [
            |file| file.set_len(3).unwrap(),
            |file| file.set_len(1 << 20).unwrap(),
            |file| {
                std::thread::sleep(std::time::Duration::from_millis(20)); // the kernel's clock is coarse
                file.write_all(b"other").unwrap();
            },
        ];
        for change in changes {
            let (mut file, request) = file(&vec![b'x'; limits::CHUNK_BYTES + 9]);
            let mut download = Download::new(&request, &Reach::default()).unwrap();
            download.by_ref().take(2).for_each(|part| drop(part.unwrap()));
            change(file.as_file_mut());
            let rest: Vec<_> = download.collect();
            assert_eq!(code(rest.into_iter().next_back().unwrap()), ErrorCode::Changed);
        }
    }

    #[test]
    fn a_file_that_is_replaced_on_the_way_arrives_as_it_was() {
        let (file, request) = file(b"old");
        let mut download = Download::new(&request, &Reach::default()).unwrap();
        download.next().unwrap().unwrap();
        let new = file.path().with_extension("new");
        fs::write(&new, "new content").unwrap();
        fs::rename(&new, file.path()).unwrap();
        let parts: Vec<Part> = download.map(Result::unwrap).collect();
        assert!(
            matches!(parts.as_slice(), [Part::Chunk(chunk), Part::Trailer(_)] if chunk == "old"),
            "{parts:?}"
        );
    }

    #[test]
    fn a_directory_is_refused() {
        assert_eq!(code(Download::new(&DownloadRequest { path: "/tmp".to_owned() }, &Reach::default())), ErrorCode::IsDirectory);
    }
}
