//! Removing files, links and directories.

use std::fs;
use std::os::fd::AsFd as _;
use std::path::Path;

use rustix::fs::AtFlags;
use sandpod_protocol::Failure;
use sandpod_protocol::v1::{DeleteRequest, DeleteResponse, ErrorCode};

use super::paths::absolute;
use super::place::{Place, Purpose, Reach, own_fd};
use super::turns;

/// Removes what the path names: a link itself, a directory with all in it unless only an empty one may
/// go. No link is followed.
pub(super) fn delete(request: &DeleteRequest, reach: &Reach) -> Result<DeleteResponse, Failure> {
    if absolute(&request.path)?.file_name().is_none() {
        let message =
            format!("'{}' is not deleted: name an entry of a directory, not '/' or '..'", request.path);
        return Err(Failure::new(ErrorCode::InvalidArgument, message).at(&request.path));
    }
    let place = reach.at(&request.path, Purpose::DELETE)?;
    let _turn = turns::take([&place])?;
    if request.only_empty && place.found()?.is_directory() {
        let removed = rustix::fs::unlinkat(place.dir(), place.name(), AtFlags::REMOVEDIR);
        removed.map_err(|errno| place.refused(errno))?;
    } else {
        remove(&place)?;
    }
    Ok(DeleteResponse {})
}

pub(super) fn remove(place: &Place) -> Result<(), Failure> {
    if place.found()?.is_directory() {
        let below = Path::new(&own_fd(place.dir().as_fd())).join(place.name());
        fs::remove_dir_all(below).map_err(|error| place.refused(error))
    } else {
        let removed = rustix::fs::unlinkat(place.dir(), place.name(), AtFlags::empty());
        removed.map_err(|errno| place.refused(errno))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::files::testing::{code, text};

    fn delete_path(path: &str) -> Result<DeleteResponse, Failure> {
        delete(&DeleteRequest { path: path.to_owned(), ..DeleteRequest::default() }, &Reach::default())
    }

    #[test]
    fn a_directory_goes_with_all_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(tree.join("a/b/file"), "x").unwrap();
        delete_path(&text(&tree)).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn a_directory_that_must_be_empty_goes_only_when_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("directory");
        fs::create_dir_all(path.join("inner")).unwrap();
        let delete_empty = |path: &Path| {
            let request = DeleteRequest { path: text(path), only_empty: true, ..DeleteRequest::default() };
            delete(&request, &Reach::default())
        };
        assert_eq!(code(delete_empty(&path)), ErrorCode::Exists);
        delete_empty(&path.join("inner")).unwrap();
        delete_empty(&path).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_link_goes_and_its_target_stays_also_with_a_trailing_slash() {
        let dir = tempfile::tempdir().unwrap();
        let kept = dir.path().join("kept");
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "x").unwrap();
        for slash in ["", "/"] {
            let link = dir.path().join("link");
            symlink(&kept, &link).unwrap();
            delete_path(&format!("{}{slash}", link.display())).unwrap();
            assert!(fs::symlink_metadata(&link).is_err());
            assert!(kept.join("file").exists());
        }
    }

    #[test]
    fn links_inside_a_directory_are_not_followed_out_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let (kept, tree) = (dir.path().join("kept"), dir.path().join("tree"));
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "x").unwrap();
        fs::create_dir(&tree).unwrap();
        symlink(&kept, tree.join("link")).unwrap();
        delete_path(&text(&tree)).unwrap();
        assert!(kept.join("file").exists());
    }

    #[test]
    fn a_broken_link_counts_as_there() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        symlink("nowhere", &link).unwrap();
        delete_path(&text(&link)).unwrap();
    }

    #[test]
    fn what_is_missing_is_not_found_and_the_root_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(code(delete_path(&text(&dir.path().join("no")))), ErrorCode::NotFound);
        let parent = format!("{}/sub/..", dir.path().display());
        for root in ["/", "//", "/.", "/..", &parent] {
            assert_eq!(code(delete_path(root)), ErrorCode::InvalidArgument, "{root}");
        }
        assert!(Path::new("/").exists() && dir.path().exists());
    }
}
