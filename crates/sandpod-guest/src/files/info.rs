//! What is known of a file without reading it.

use std::fs::{self, FileType, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;

use prost::Message as _;
use sandpod_protocol::v1::{
    ErrorCode, FileInfo, FileKind, ListRequest, ListResponse, StatRequest, StatResponse,
};
use sandpod_protocol::{Failure, limits};

use super::paths::{absolute, refused};

pub(super) fn stat(request: &StatRequest) -> Result<StatResponse, Failure> {
    let path = absolute(&request.path)?;
    let metadata = if request.follow { fs::metadata(&path) } else { fs::symlink_metadata(&path) };
    let metadata = metadata.map_err(refused("look at", &path))?;
    Ok(StatResponse { info: Some(file_info(request.path.clone(), &metadata)) })
}

pub(super) fn list(request: &ListRequest) -> Result<ListResponse, Failure> {
    let path = absolute(&request.path)?;
    let mut entries = Vec::new();
    let mut bytes = 0;
    for entry in fs::read_dir(&path).map_err(refused("list", &path))? {
        let entry = entry.map_err(refused("list", &path))?;
        let metadata = match entry.metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => continue, // removed meanwhile
            metadata => metadata.map_err(refused("list", &entry.path()))?,
        };
        let info = file_info(entry.path().to_string_lossy().into_owned(), &metadata);
        bytes += info.encoded_len();
        if bytes as u64 > limits::MAX_OUTPUT_BYTES {
            let message = format!(
                "'{}' has more entries than one answer can hold: glob for the ones you need",
                path.display()
            );
            return Err(Failure::new(ErrorCode::TooLarge, message).at(&request.path));
        }
        entries.push(info);
    }
    Ok(ListResponse { entries })
}

/// What the protocol says about a file.
pub(crate) fn file_info(path: String, metadata: &Metadata) -> FileInfo {
    FileInfo {
        path,
        kind: kind(metadata.file_type()).into(),
        size: metadata.len(),
        mode: metadata.mode() & 0o7777,
        modified_ns: metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec()),
        uid: metadata.uid(),
        gid: metadata.gid(),
        link_target: String::new(),
    }
}

fn kind(file_type: FileType) -> FileKind {
    if file_type.is_file() {
        FileKind::File
    } else if file_type.is_dir() {
        FileKind::Directory
    } else if file_type.is_symlink() {
        FileKind::Link
    } else {
        FileKind::Other
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::files::testing::{chmod, code, fifo, text};

    fn stat_of(path: String, follow: bool) -> FileInfo {
        stat(&StatRequest { path, follow }).unwrap().info.unwrap()
    }

    #[test]
    fn stat_says_kind_size_mode_and_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "12345").unwrap();
        chmod(&path, 0o640);
        let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_700_000_000_123_456_789);
        fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        let info = stat_of(text(&path), false);
        assert_eq!((info.kind(), info.size, info.mode), (FileKind::File, 5, 0o640));
        assert_eq!(info.modified_ns, 1_700_000_000_123_456_789);
        assert_eq!(info.path, text(&path));
    }

    #[test]
    fn stat_follows_a_link_only_when_asked() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        symlink(dir.path(), &link).unwrap();
        assert_eq!(stat_of(text(&link), false).kind(), FileKind::Link);
        assert_eq!(stat_of(text(&link), true).kind(), FileKind::Directory);
        let missing = StatRequest { path: text(&dir.path().join("no")), follow: true };
        assert_eq!(code(stat(&missing)), ErrorCode::NotFound);
    }

    #[test]
    fn list_tells_what_entries_are_without_following_links() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "123").unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        symlink("sub", dir.path().join("link")).unwrap();
        fifo(dir.path());
        let mut entries = list(&ListRequest { path: text(dir.path()) }).unwrap().entries;
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        let found: Vec<_> = entries.iter().map(|entry| (entry.path.as_str(), entry.kind())).collect();
        let path = |name| text(&dir.path().join(name));
        let (file, link, pipe, sub) = (path("file"), path("link"), path("pipe"), path("sub"));
        let expected = [
            (file.as_str(), FileKind::File),
            (&link, FileKind::Link),
            (&pipe, FileKind::Other),
            (&sub, FileKind::Directory),
        ];
        assert_eq!(found, expected);
        assert_eq!(entries[0].size, 3);
    }

    #[test]
    fn list_refuses_a_file_and_what_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(code(list(&ListRequest { path: text(&file) })), ErrorCode::NotADirectory);
        assert_eq!(code(list(&ListRequest { path: "/no/such".to_owned() })), ErrorCode::NotFound);
    }
}
