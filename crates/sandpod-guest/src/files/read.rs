//! Reads a page of a text file, or a small binary file.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use sandpod_protocol::Failure;
use sandpod_protocol::v1::read_response::Content;
use sandpod_protocol::v1::{ByteRange, ReadRequest, ReadResponse};
use sandpod_text::page::{NoPage, max_bytes, page};

use super::paths::refused;
use super::resolver::{Location, PathResolver, Purpose};

pub(super) fn read(request: &ReadRequest, resolver: &PathResolver) -> Result<ReadResponse, Failure> {
    let location = resolver.resolve(&request.path, Purpose::READ)?;
    let (file, stat) = location.open_regular()?;
    let content = match request.range {
        Some(range) => Content::Binary(read_range(&location, &file, range, max_bytes(request))?.into()),
        None => page(request, file, stat.size).map_err(|error| match error {
            NoPage::Unreadable(error) => refused("read", location.path())(error),
            NoPage::Refused(failure) => failure.at(location.path().to_string_lossy()),
        })?,
    };
    Ok(ReadResponse { content: Some(content), info: Some(stat.info(request.path.clone())) })
}

/// Reads bytes from an offset: as many as requested, allowed and available.
fn read_range(
    location: &Location,
    file: &File,
    range: ByteRange,
    max_bytes: u64,
) -> Result<Vec<u8>, Failure> {
    let length = if range.length == 0 { max_bytes } else { range.length.min(max_bytes) };
    let mut content = Vec::new();
    // Offsets in the kernel are signed; no file is larger.
    if i64::try_from(range.offset).is_ok() {
        let mut file = file;
        file.seek(SeekFrom::Start(range.offset)).map_err(|error| location.refused(error))?;
        file.take(length).read_to_end(&mut content).map_err(|error| location.refused(error))?;
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use sandpod_protocol::v1::ErrorCode;

    use super::*;
    use crate::files::testing::{code, text};

    fn ask(offset: u64, limit: u64, max_bytes: u64) -> ReadRequest {
        ReadRequest { line_offset: offset, line_limit: limit, max_bytes, ..ReadRequest::default() }
    }

    fn read_bytes(content: impl AsRef<[u8]>, request: &ReadRequest) -> Result<Content, Failure> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, content).unwrap();
        read(&ReadRequest { path: text(file.path()), ..request.clone() }, &PathResolver::default())
            .map(|response| response.content.unwrap())
    }

    #[test]
    fn a_huge_file_is_read_only_up_to_the_end_of_the_page() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, "x\n".repeat(8192)).unwrap();
        file.as_file().set_len(1 << 40).unwrap(); // a hole that would take hours to read
        let request = ReadRequest { path: text(file.path()), ..ask(5, 2, 0) };
        let Some(Content::Text(page)) = read(&request, &PathResolver::default()).unwrap().content else {
            panic!("it must be text")
        };
        assert_eq!((page.content.as_str(), page.end_line, page.more), ("x\nx", 7, true));
        assert_eq!(page.total_lines, None);
        // A line without an end is truncated, too.
        let request = ReadRequest { path: text(file.path()), ..ask(8192, 2, 100) };
        let Some(Content::Text(page)) = read(&request, &PathResolver::default()).unwrap().content else {
            panic!("it must be text")
        };
        assert_eq!((page.content.len(), page.truncated, page.more), (100, true, true));
    }

    #[test]
    fn directories_and_missing_files_are_refused() {
        let request = |path: &str| ReadRequest { path: path.to_owned(), ..ask(0, 1, 0) };
        assert_eq!(code(read(&request("/tmp"), &PathResolver::default())), ErrorCode::IsDirectory);
        assert_eq!(code(read(&request("/no/such"), &PathResolver::default())), ErrorCode::NotFound);
    }

    #[test]
    fn a_range_returns_the_bytes_that_exist() {
        let range = |offset, length, max_bytes| {
            let range = Some(ByteRange { offset, length });
            match read_bytes(b"ab\xff\0ef", &ReadRequest { range, max_bytes, ..ReadRequest::default() }) {
                Ok(Content::Binary(bytes)) => bytes.to_vec(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(range(0, 0, 0), b"ab\xff\0ef");
        assert_eq!(range(1, 3, 0), b"b\xff\0");
        assert_eq!(range(4, 100, 0), b"ef");
        assert_eq!(range(0, 100, 2), b"ab");
        assert_eq!(range(6, 1, 0), b"");
        assert_eq!(range(u64::MAX, u64::MAX, 0), b"");
    }

    #[test]
    fn a_read_returns_the_metadata_of_its_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, "12345").unwrap();
        let request = ReadRequest { path: text(file.path()), ..ask(0, 1, 0) };
        let info = read(&request, &PathResolver::default()).unwrap().info.unwrap();
        assert_eq!((info.path, info.size), (text(file.path()), 5));
    }
}
