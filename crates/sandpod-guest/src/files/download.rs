//! Sends a file of any size: its metadata, its bytes in chunks, and their checksum.

use sandpod_protocol::Failure;
use sandpod_protocol::v1::download_response::Part;
use sandpod_protocol::v1::{DownloadRequest, FileInfo};

use super::file_chunks::{FileChunks, FilePart};
use super::resolver::{PathResolver, Purpose};

/// The parts of a download, read on demand.
pub(super) struct Download {
    header: Option<FileInfo>,
    content: FileChunks,
    done: bool,
}

impl Download {
    pub(super) fn new(request: &DownloadRequest, resolver: &PathResolver) -> Result<Self, Failure> {
        let location = resolver.resolve(&request.path, Purpose::READ)?;
        let (file, stat) = location.open_regular()?;
        let header = Some(stat.info(request.path.clone()));
        let content = FileChunks::new(location.path().to_owned(), file, stat);
        Ok(Self { header, content, done: false })
    }

    fn next_part(&mut self) -> Result<Part, Failure> {
        if let Some(header) = self.header.take() {
            return Ok(Part::Header(header));
        }
        Ok(match self.content.next()? {
            FilePart::Chunk(chunk) => Part::Chunk(chunk),
            FilePart::Trailer(trailer) => {
                self.done = true;
                Part::Trailer(trailer)
            }
        })
    }
}

impl Iterator for Download {
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

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write as _;

    use sandpod_protocol::v1::ErrorCode;
    use sandpod_protocol::{Checksum, limits};

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
        let parts: Vec<Part> =
            Download::new(&request, &PathResolver::default()).unwrap().map(Result::unwrap).collect();
        let [Part::Header(header), Part::Chunk(a), Part::Chunk(b), Part::Chunk(c), Part::Trailer(trailer)] =
            parts.as_slice()
        else {
            panic!("{} parts", parts.len())
        };
        assert_eq!((header.size, &header.path), (content.len() as u64, &request.path));
        assert_eq!((a.len(), c.len()), (limits::CHUNK_BYTES, 5));
        assert_eq!([a.as_ref(), b, c].concat(), content);
        assert_eq!(trailer.checksum, Checksum::of(&content));
    }

    #[test]
    fn an_empty_file_has_a_header_and_a_checksum() {
        let (_file, request) = file(b"");
        let parts: Vec<Part> =
            Download::new(&request, &PathResolver::default()).unwrap().map(Result::unwrap).collect();
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
            let mut download = Download::new(&request, &PathResolver::default()).unwrap();
            download.by_ref().take(2).for_each(|part| drop(part.unwrap()));
            change(file.as_file_mut());
            let rest: Vec<_> = download.collect();
            assert_eq!(code(rest.into_iter().next_back().unwrap()), ErrorCode::Changed);
        }
    }

    #[test]
    fn a_file_that_is_replaced_on_the_way_arrives_as_it_was() {
        let (file, request) = file(b"old");
        let mut download = Download::new(&request, &PathResolver::default()).unwrap();
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
        assert_eq!(
            code(Download::new(&DownloadRequest { path: "/tmp".to_owned() }, &PathResolver::default())),
            ErrorCode::IsDirectory
        );
    }
}
