//! Creates or replaces a file with the content of one message.

use std::sync::Arc;

use sandpod_protocol::v1::{ErrorCode, WriteRequest, WriteResponse};
use sandpod_protocol::{Failure, limits};

use super::resolver::{PathResolver, Purpose};
use super::staged::Staged;

pub(super) fn write(request: &WriteRequest, resolver: &PathResolver) -> Result<WriteResponse, Failure> {
    if request.content.len() > limits::MAX_INLINE_BYTES {
        let message =
            format!("more than {} bytes do not fit into a write: upload them", limits::MAX_INLINE_BYTES);
        return Err(Failure::new(ErrorCode::TooLarge, message).at(&request.path));
    }
    let location = resolver.resolve_for_create(&request.path, Purpose::WRITE)?;
    let mut staged = Staged::new(Arc::new(location), &resolver.temp_journal, None)?;
    staged.append(&request.content)?;
    staged.lock_and_commit()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, chown, symlink};
    use std::path::Path;

    use rustix::io::Errno;

    use super::*;
    use crate::files::file_locks;
    use crate::files::testing::{
        as_nobody, chmod, code, fifo, in_own_mounts, mode, mount_tmpfs, names, text,
    };

    fn write_to(path: &Path, content: &str) -> Result<bool, Failure> {
        let content = content.to_owned().into();
        let request = WriteRequest { operation: None, path: text(path), content };
        write(&request, &PathResolver::default()).map(|response| response.atomic)
    }

    /// Returns new content that is not committed yet.
    fn staged(path: &Path, content: &[u8]) -> Staged {
        let resolver = PathResolver::default();
        let location = resolver.resolve_for_create(&text(path), Purpose::WRITE).unwrap();
        let mut staged = Staged::new(Arc::new(location), &resolver.temp_journal, None).unwrap();
        staged.append(content).unwrap();
        staged
    }

    #[test]
    fn a_new_file_gets_parent_directories_and_default_modes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/file");
        assert!(write_to(&path, "hello").unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "hello");
        // The umask applies to 0644 and 0755, as for any other new file.
        fs::write(dir.path().join("plain"), "").unwrap();
        fs::create_dir(dir.path().join("plain-dir")).unwrap();
        assert_eq!(mode(&path), mode(&dir.path().join("plain")) & 0o644);
        assert_eq!(mode(&dir.path().join("a")), mode(&dir.path().join("plain-dir")) & 0o755);
        assert_eq!(names(&dir.path().join("a/b")), ["file"]);
    }

    #[test]
    fn a_replaced_file_is_a_new_inode_with_the_same_mode_and_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "long old content").unwrap();
        let root = rustix::process::geteuid().is_root();
        if root {
            chown(&path, Some(1234), Some(2345)).unwrap();
        }
        chmod(&path, 0o4751);
        let before = fs::metadata(&path).unwrap();
        assert!(write_to(&path, "new").unwrap());
        let after = fs::metadata(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(mode(&path), 0o4751);
        assert_eq!((after.uid(), after.gid()), (before.uid(), before.gid()));
        assert_ne!(after.ino(), before.ino());
        assert_eq!(names(dir.path()), ["file"]);
    }

    #[test]
    fn links_are_followed_also_to_missing_targets() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        symlink("middle", dir.path().join("link")).unwrap();
        symlink("sub/../new/target", dir.path().join("middle")).unwrap();
        for content in ["first", "second"] {
            assert!(write_to(&dir.path().join("link"), content).unwrap());
            assert_eq!(fs::read_to_string(dir.path().join("new/target")).unwrap(), content);
        }
        assert!(fs::symlink_metadata(dir.path().join("link")).unwrap().is_symlink());
    }

    #[test]
    fn a_loop_of_links_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        symlink("b", dir.path().join("a")).unwrap();
        symlink("a", dir.path().join("b")).unwrap();
        assert_eq!(code(write_to(&dir.path().join("a"), "x")), ErrorCode::InvalidArgument);
    }

    #[test]
    fn a_file_that_cannot_be_renamed_over_is_written_in_place() {
        for errno in [Errno::BUSY, Errno::XDEV] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("mounted");
            fs::write(&path, "long old content").unwrap();
            let inode = fs::metadata(&path).unwrap().ino();
            let mut staged = staged(&path, b"new");
            let locks = file_locks::lock([staged.location()]).unwrap();
            assert!(!staged.commit_by(&locks, |_, _| Err(errno)).unwrap());
            drop(staged);
            assert_eq!(fs::read_to_string(&path).unwrap(), "new");
            assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
            assert_eq!(names(dir.path()), ["mounted"]);
        }
    }

    #[test]
    fn a_failed_commit_keeps_the_old_content_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "old").unwrap();
        let mut staged = staged(&path, b"new");
        let locks = file_locks::lock([staged.location()]).unwrap();
        assert_eq!(code(staged.commit_by(&locks, |_, _| Err(Errno::NOSPC))), ErrorCode::NoSpace);
        drop(staged);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(names(dir.path()), ["file"]);
    }

    #[test]
    fn a_writable_file_in_a_closed_directory_is_written_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "long old content").unwrap();
        chmod(&path, 0o666);
        chmod(dir.path(), 0o555);
        assert!(!as_nobody(|| write_to(&path, "new")).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(code(as_nobody(|| write_to(&dir.path().join("other"), "x"))), ErrorCode::PermissionDenied);
    }

    #[test]
    fn a_file_that_may_not_be_written_is_not_replaced_either() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "old").unwrap();
        chmod(&path, 0o444);
        chmod(dir.path(), 0o777);
        assert_eq!(code(as_nobody(|| write_to(&path, "new"))), ErrorCode::PermissionDenied);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    }

    #[test]
    fn writes_to_anything_but_a_file_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(code(write_to(dir.path(), "x")), ErrorCode::IsDirectory);
        assert_eq!(code(write_to(&dir.path().join("new/"), "x")), ErrorCode::IsDirectory);
        assert_eq!(code(write_to(Path::new("/"), "x")), ErrorCode::IsDirectory);
        assert_eq!(code(write_to(&fifo(dir.path()), "x")), ErrorCode::NotAFile);
        fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(code(write_to(&dir.path().join("file/below"), "x")), ErrorCode::NotADirectory);
    }

    #[test]
    fn content_larger_than_a_message_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let content = "x".repeat(limits::MAX_INLINE_BYTES + 1);
        assert_eq!(code(write_to(&dir.path().join("file"), &content)), ErrorCode::TooLarge);
    }

    #[test]
    fn other_names_of_a_replaced_file_keep_the_old_content() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("file"), dir.path().join("other"));
        fs::write(&path, "old").unwrap();
        fs::hard_link(&path, &other).unwrap();
        assert!(write_to(&path, "new").unwrap());
        assert_eq!(fs::read_to_string(&other).unwrap(), "old");
    }

    #[test]
    fn a_mounted_file_is_written_in_place() {
        if !in_own_mounts("files::write::tests::a_mounted_file_is_written_in_place") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (path, source) = (dir.path().join("hosts"), dir.path().join("source"));
        fs::write(&path, "").unwrap();
        fs::write(&source, "long old content").unwrap();
        rustix::mount::mount_bind(&source, &path).unwrap();
        assert!(!write_to(&path, "new").unwrap());
        assert_eq!(fs::read_to_string(&source).unwrap(), "new");
        assert_eq!(names(dir.path()), ["hosts", "source"]);
    }

    #[test]
    fn a_full_disk_is_reported_and_keeps_the_old_content() {
        if !in_own_mounts("files::write::tests::a_full_disk_is_reported_and_keeps_the_old_content") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        mount_tmpfs(dir.path(), "size=64k");
        let path = dir.path().join("file");
        fs::write(&path, "old").unwrap();
        let failure = write_to(&path, &"x".repeat(200_000)).unwrap_err();
        assert_eq!(failure.code(), ErrorCode::NoSpace);
        assert!(failure.message().contains("No space left"), "{failure}");
        // The same for a write in place.
        rustix::mount::mount_bind(&path, &path).unwrap();
        assert_eq!(code(write_to(&path, &"x".repeat(200_000))), ErrorCode::NoSpace);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(names(dir.path()), ["file"]);
        assert!(!write_to(&path, "fits").unwrap());
    }

    #[test]
    fn a_read_only_file_system_is_reported() {
        if !in_own_mounts("files::write::tests::a_read_only_file_system_is_reported") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        mount_tmpfs(dir.path(), "size=64k");
        let path = dir.path().join("file");
        fs::write(&path, "old").unwrap();
        rustix::mount::mount_remount(dir.path(), rustix::mount::MountFlags::RDONLY, c"").unwrap();
        for path in [&path, &dir.path().join("new"), &dir.path().join("new/deep")] {
            let failure = write_to(path, "new").unwrap_err();
            assert_eq!(failure.code(), ErrorCode::PermissionDenied);
            assert!(failure.message().contains("Read-only file system"), "{failure}");
        }
    }
}
