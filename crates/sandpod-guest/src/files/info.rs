//! Metadata of files and directory listings.

use std::ffi::OsStr;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;

use prost::Message as _;
use rustix::fs::Dir;
use rustix::io::Errno;
use sandpod_protocol::v1::{ErrorCode, FileKind, ListRequest, ListResponse, StatRequest, StatResponse};
use sandpod_protocol::{Failure, limits};

use super::resolver::{PathResolver, Purpose, read_link, stat_at};
use super::rules::Access;

pub(super) fn stat(request: &StatRequest, resolver: &PathResolver) -> Result<StatResponse, Failure> {
    let location = if request.follow {
        resolver.resolve(&request.path, Purpose::STAT)?
    } else {
        resolver.resolve_nofollow(&request.path, Purpose::STAT)?
    };
    let stat = location.found()?;
    let mut info = stat.info(request.path.clone());
    if stat.is_link() {
        info.link_target = location.link_target()?.to_string_lossy().into_owned();
    }
    Ok(StatResponse { info: Some(info) })
}

pub(super) fn list(request: &ListRequest, resolver: &PathResolver) -> Result<ListResponse, Failure> {
    let location = resolver.resolve(&request.path, Purpose::LIST)?;
    let dir = location.open_directory()?;
    let real = if resolver.rules().is_unrestricted() { None } else { Some(location.real_path()?) };
    let mut entries = Vec::new();
    let mut bytes = 0;
    for entry in Dir::read_from(&dir).map_err(|errno| location.refused(errno))? {
        let entry = entry.map_err(|errno| location.refused(errno))?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        let is_hidden =
            real.as_ref().is_some_and(|real| !resolver.rules().allow(&real.join(name), Access::Read));
        if name == "." || name == ".." || is_hidden {
            continue;
        }
        let mut info = match stat_at(&dir, name) {
            Err(Errno::NOENT) => continue, // removed meanwhile
            Err(errno) => return Err(location.refused(errno)),
            Ok(stat) => stat.info(location.path().join(name).to_string_lossy().into_owned()),
        };
        if info.kind() == FileKind::Link {
            // A link that was removed meanwhile has an empty target.
            let target = read_link(dir.as_fd(), name).unwrap_or_default();
            info.link_target = target.to_string_lossy().into_owned();
        }
        bytes += info.encoded_len();
        if bytes as u64 > limits::MAX_OUTPUT_BYTES {
            return Err(too_many(&request.path));
        }
        entries.push(info);
    }
    Ok(ListResponse { entries })
}

fn too_many(path: &str) -> Failure {
    let message = format!("'{path}' has more entries than one answer can hold: glob for the ones you need");
    Failure::new(ErrorCode::TooLarge, message).at(path)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, symlink};
    use std::time::{Duration, SystemTime};

    use sandpod_protocol::v1::FileInfo;

    use super::*;
    use crate::files::testing::{chmod, code, fifo, text};

    fn stat_of(path: String, follow: bool) -> FileInfo {
        stat(&StatRequest { path, follow }, &PathResolver::default()).unwrap().info.unwrap()
    }

    fn list_of(path: &str) -> Result<Vec<FileInfo>, Failure> {
        list(&ListRequest { path: path.to_owned() }, &PathResolver::default())
            .map(|response| response.entries)
    }

    #[test]
    fn stat_returns_kind_size_mode_and_time() {
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
        let owner = fs::metadata(&path).unwrap();
        assert_eq!((info.uid, info.gid), (owner.uid(), owner.gid()));
    }

    #[test]
    fn stat_follows_a_link_only_when_asked() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        symlink(dir.path(), &link).unwrap();
        let itself = stat_of(text(&link), false);
        assert_eq!((itself.kind(), itself.link_target), (FileKind::Link, text(dir.path())));
        assert_eq!(stat_of(text(&link), true).kind(), FileKind::Directory);
        let missing = StatRequest { path: text(&dir.path().join("no")), follow: true };
        assert_eq!(code(stat(&missing, &PathResolver::default())), ErrorCode::NotFound);
    }

    #[test]
    fn list_returns_metadata_without_following_links() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "123").unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        symlink("sub", dir.path().join("link")).unwrap();
        fifo(dir.path());
        let mut entries = list_of(&text(dir.path())).unwrap();
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
        assert_eq!((entries[0].size, entries[1].link_target.as_str()), (3, "sub"));
    }

    #[test]
    fn list_refuses_files_and_missing_paths() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(code(list_of(&text(&file))), ErrorCode::NotADirectory);
        assert_eq!(code(list_of("/no/such")), ErrorCode::NotFound);
    }
}
