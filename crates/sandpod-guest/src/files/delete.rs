//! Deletes files, links and directories.

use rustix::fs::AtFlags;
use rustix::io::Errno;
use sandpod_protocol::Failure;
use sandpod_protocol::v1::{DeleteRequest, DeleteResponse, ErrorCode};
use sandpod_remove::NoAccess;

use super::file_locks;
use super::paths::absolute;
use super::resolver::{Location, PathResolver, Purpose};

/// Deletes what the path names: a link itself, or a directory with its contents unless `only_empty` is set. Follows no
/// link.
pub(super) fn delete(request: &DeleteRequest, resolver: &PathResolver) -> Result<DeleteResponse, Failure> {
    if absolute(&request.path)?.file_name().is_none() {
        let message =
            format!("'{}' is not deleted: name an entry of a directory, not '/' or '..'", request.path);
        return Err(Failure::new(ErrorCode::InvalidArgument, message).at(&request.path));
    }
    let location = resolver.resolve_nofollow(&request.path, Purpose::DELETE)?;
    let _locks = file_locks::lock([&location])?;
    if request.only_empty && location.found()?.is_directory() {
        let removed = rustix::fs::unlinkat(location.dir(), location.name(), AtFlags::REMOVEDIR);
        removed.map_err(|errno| refused(&location, errno))?;
    } else {
        remove(&location)?;
    }
    Ok(DeleteResponse {})
}

/// Deletes what is at a location. If the deletion would fail even without contents, nothing in it is touched.
pub(super) fn remove(location: &Location) -> Result<(), Failure> {
    location.found()?;
    let removed = sandpod_remove::remove(location.dir(), location.name(), NoAccess::Fail);
    removed.map_err(|errno| refused(location, errno))
}

fn refused(location: &Location, errno: Errno) -> Failure {
    if errno != Errno::BUSY {
        return location.refused(errno);
    }
    let path = location.path().to_string_lossy();
    let message = format!(
        "cannot delete '{path}': it is a mount point, or has one in it, and those stay. Delete what is in it instead"
    );
    Failure::new(ErrorCode::InvalidArgument, message).at(path)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;
    use crate::files::testing::{as_nobody, chmod, code, in_own_mounts, make_deep, mount_tmpfs, names, text};

    fn delete_path(path: &str) -> Result<DeleteResponse, Failure> {
        delete(&DeleteRequest { path: path.to_owned(), ..DeleteRequest::default() }, &PathResolver::default())
    }

    #[test]
    fn a_directory_is_deleted_with_its_contents() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(tree.join("a/b/file"), "x").unwrap();
        delete_path(&text(&tree)).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn a_very_deep_directory_is_deleted() {
        // On a disk this takes most of a minute.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let tree = dir.path().join("tree");
        make_deep(&tree, 20_000);
        delete_path(&text(&tree)).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn an_unreadable_directory_is_refused_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        chmod(dir.path(), 0o777);
        as_nobody(|| {
            let closed = dir.path().join("tree/closed");
            fs::create_dir_all(closed.join("inner")).unwrap();
            chmod(&closed, 0o000);
            assert_eq!(code(delete_path(&text(&closed))), ErrorCode::PermissionDenied);
            chmod(&closed, 0o700);
            assert!(closed.join("inner").exists());
        });
    }

    #[test]
    fn a_tree_in_a_read_only_directory_is_not_emptied() {
        let dir = tempfile::tempdir().unwrap();
        chmod(dir.path(), 0o777);
        as_nobody(|| {
            let tree = dir.path().join("kept/tree");
            fs::create_dir_all(&tree).unwrap();
            fs::write(tree.join("file"), "x").unwrap();
            chmod(&dir.path().join("kept"), 0o555);
            assert_eq!(code(delete_path(&text(&tree))), ErrorCode::PermissionDenied);
            assert!(tree.join("file").exists());
        });
    }

    #[test]
    fn a_mount_point_keeps_its_contents() {
        if !in_own_mounts("files::delete::tests::a_mount_point_keeps_its_contents") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let mounted = dir.path().join("tree/mounted");
        fs::create_dir_all(&mounted).unwrap();
        mount_tmpfs(&mounted, "size=64k");
        fs::write(mounted.join("file"), "x").unwrap();
        for path in [mounted.as_path(), &dir.path().join("tree")] {
            let failure = delete_path(&text(path)).unwrap_err();
            assert!(failure.message().contains("it is a mount point, or has one in it"), "{failure}");
            assert_eq!(names(&mounted), ["file"]);
        }
    }

    #[test]
    fn only_empty_deletes_only_an_empty_directory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("directory");
        fs::create_dir_all(path.join("inner")).unwrap();
        let delete_empty = |path: &Path| {
            let request = DeleteRequest { path: text(path), only_empty: true, ..DeleteRequest::default() };
            delete(&request, &PathResolver::default())
        };
        assert_eq!(code(delete_empty(&path)), ErrorCode::Exists);
        delete_empty(&path.join("inner")).unwrap();
        delete_empty(&path).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn deleting_a_link_keeps_its_target_also_with_a_trailing_slash() {
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
    fn a_broken_link_can_be_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        symlink("nowhere", &link).unwrap();
        delete_path(&text(&link)).unwrap();
    }

    #[test]
    fn missing_paths_are_not_found_and_the_root_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(code(delete_path(&text(&dir.path().join("no")))), ErrorCode::NotFound);
        let parent = format!("{}/sub/..", dir.path().display());
        for root in ["/", "//", "/.", "/..", &parent] {
            assert_eq!(code(delete_path(root)), ErrorCode::InvalidArgument, "{root}");
        }
        assert!(Path::new("/").exists() && dir.path().exists());
    }
}
