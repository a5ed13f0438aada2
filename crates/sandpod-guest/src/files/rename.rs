//! Moves a file, a link or a directory to another path.

use std::io;
use std::sync::Arc;

use rustix::fs::RenameFlags;
use rustix::io::Errno;
use sandpod_protocol::Failure;
use sandpod_protocol::v1::{ErrorCode, FileKind, MoveRequest, MoveResponse};

use super::delete::remove;
use super::file_locks::{self, FileLocks};
use super::file_stat::FileStat;
use super::resolver::{DIRECTORY_MODE, Location, PathResolver, Purpose};
use super::staged::Staged;
use super::temp_journal::Temporary;
use super::tree::{TreeReader, TreeWriter, make_link, set_mode_and_time};

/// Renames, or copies and deletes if the paths are on two file systems.
pub(super) fn move_path(request: &MoveRequest, resolver: &PathResolver) -> Result<MoveResponse, Failure> {
    move_by(request, resolver, rename)
}

fn move_by(
    request: &MoveRequest,
    resolver: &PathResolver,
    rename: impl FnOnce(&Location, &Location, bool) -> rustix::io::Result<()>,
) -> Result<MoveResponse, Failure> {
    let from = resolver.resolve_nofollow(&request.from, Purpose::MOVE)?;
    from.found()?;
    let to = Arc::new(resolver.resolve_nofollow_for_create(&request.to, Purpose::MOVE)?);
    for (location, path) in [(&from, &request.from), (&*to, &request.to)] {
        if location.name() == "." {
            let message = format!("'{path}' is not moved: name an entry of a directory, not '/' or '..'");
            return Err(Failure::new(ErrorCode::InvalidArgument, message).at(path));
        }
    }
    let locks = file_locks::lock([&from, &*to])?;
    match rename(&from, &to, request.replace) {
        Ok(()) => Ok(MoveResponse { atomic: true }),
        Err(Errno::XDEV) => {
            copy(&from, &to, request.replace, resolver, locks)?;
            remove(&from)?;
            Ok(MoveResponse { atomic: false })
        }
        Err(Errno::EXIST) => Err(exists(&to)),
        Err(Errno::INVAL) => {
            let message = format!("'{}' can't be moved to a path below itself", request.from);
            Err(Failure::new(ErrorCode::InvalidArgument, message).at(&request.from))
        }
        Err(errno @ (Errno::ISDIR | Errno::NOTDIR | Errno::NOTEMPTY)) => Err(to.refused(errno)),
        Err(errno) => Err(from.refused(errno)),
    }
}

fn rename(from: &Location, to: &Location, replace: bool) -> rustix::io::Result<()> {
    let plainly = || rustix::fs::renameat(from.dir(), from.name(), to.dir(), to.name());
    if replace {
        return plainly();
    }
    let renamed =
        rustix::fs::renameat_with(from.dir(), from.name(), to.dir(), to.name(), RenameFlags::NOREPLACE);
    match renamed {
        // Some file systems do not support it: then a check before has to do.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => match to.stat_now() {
            Ok(Some(_)) => Err(Errno::EXIST),
            _ => plainly(),
        },
        renamed => renamed,
    }
}

fn exists(to: &Location) -> Failure {
    let path = to.path().to_string_lossy();
    let message = format!("'{path}' exists already: choose another path, or replace it");
    Failure::new(ErrorCode::Exists, message).at(path)
}

/// Copies to another file system. Concurrent edits are not lost: a file is copied under its lock, and the files of a
/// directory each under theirs.
fn copy(
    from: &Location,
    to: &Arc<Location>,
    replace: bool,
    resolver: &PathResolver,
    locks: FileLocks,
) -> Result<(), Failure> {
    let stat = from.found()?;
    if !replace && to.stat_now()?.is_some() {
        return Err(exists(to));
    }
    match stat.kind {
        FileKind::File => copy_file(from, to, resolver, &locks),
        FileKind::Directory => {
            drop(locks);
            copy_directory(from, to, stat, resolver)
        }
        FileKind::Link => {
            let target = from.link_target()?;
            make_link(to, target.as_os_str(), stat.modified_ns, &resolver.temp_journal)
        }
        FileKind::Other | FileKind::Unspecified => Err(from.refused(Errno::XDEV)),
    }
}

fn copy_file(
    from: &Location,
    to: &Arc<Location>,
    resolver: &PathResolver,
    locks: &FileLocks,
) -> Result<(), Failure> {
    let (file, stat) = from.open_regular()?;
    let staged = Staged::new(to.clone(), &resolver.temp_journal, Some(stat.mode))?;
    io::copy(&mut &file, &mut staged.file()).map_err(|error| to.refused(error))?;
    let modified = file.metadata().and_then(|metadata| metadata.modified());
    modified.and_then(|time| staged.file().set_modified(time)).map_err(|error| to.refused(error))?;
    staged.commit(locks)?;
    Ok(())
}

/// Copies into a temporary directory, which is renamed when it is complete.
fn copy_directory(
    from: &Location,
    to: &Location,
    stat: FileStat,
    resolver: &PathResolver,
) -> Result<(), Failure> {
    let reader = TreeReader::at(from, resolver)?;
    let refused = |errno: Errno| to.refused(errno);
    let mut temporary = Temporary::new(to.dir(), &resolver.temp_journal).map_err(refused)?;
    rustix::fs::mkdirat(temporary.dir(), temporary.name(), DIRECTORY_MODE).map_err(refused)?;
    let root = resolver.open_below(temporary.dir(), temporary.name().as_ref()).map_err(refused)?;
    let mut writer = TreeWriter::into(root, to.path().to_owned(), resolver);
    for part in reader {
        writer.take(part?)?;
    }
    let skipped = writer.finish()?.skipped;
    if skipped > 0 {
        let path = from.path().to_string_lossy();
        let message = format!(
            "'{path}' has {skipped} sockets, devices or pipes, which can't be moved to another file system: \
             remove them first"
        );
        return Err(Failure::new(ErrorCode::NotAFile, message).at(path));
    }
    set_mode_and_time(temporary.dir(), temporary.name(), stat.mode, stat.modified_ns).map_err(refused)?;
    temporary.rename(to.dir(), to.name()).map_err(refused)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;
    use crate::files::testing::{chmod, code, fifo, mode, names, text};

    fn request(from: &Path, to: &Path, replace: bool) -> MoveRequest {
        MoveRequest { operation: None, from: text(from), to: text(to), replace }
    }

    fn moved(from: &Path, to: &Path, replace: bool) -> Result<bool, Failure> {
        move_path(&request(from, to, replace), &PathResolver::default()).map(|response| response.atomic)
    }

    /// Moves as if between two file systems.
    fn moved_far(from: &Path, to: &Path, replace: bool) -> Result<bool, Failure> {
        move_by(&request(from, to, replace), &PathResolver::default(), |_, _, _| Err(Errno::XDEV))
            .map(|response| response.atomic)
    }

    /// Makes a directory that contains a file, a link and a directory.
    fn tree(dir: &Path) -> std::path::PathBuf {
        let tree = dir.join("tree");
        fs::create_dir_all(tree.join("sub")).unwrap();
        fs::write(tree.join("sub/file"), "content").unwrap();
        chmod(&tree.join("sub/file"), 0o750);
        symlink("sub/file", tree.join("link")).unwrap();
        chmod(&tree.join("sub"), 0o555);
        chmod(&tree, 0o711);
        tree
    }

    #[test]
    fn files_links_and_directories_are_moved_into_new_directories() {
        for (mover, is_atomic) in [(moved as Mover, true), (moved_far, false)] {
            let dir = tempfile::tempdir().unwrap();
            let (from, to) = (tree(dir.path()), dir.path().join("new/place"));
            assert_eq!(mover(&from, &to, false).unwrap(), is_atomic);
            assert!(!from.exists());
            assert_eq!(fs::read_to_string(to.join("sub/file")).unwrap(), "content");
            assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("sub/file"));
            assert_eq!((mode(&to), mode(&to.join("sub")), mode(&to.join("sub/file"))), (0o711, 0o555, 0o750));
            mover(&to.join("link"), &dir.path().join("link"), false).unwrap();
            assert_eq!(fs::read_link(dir.path().join("link")).unwrap(), Path::new("sub/file"));
            mover(&to.join("sub/file"), &dir.path().join("file"), false).unwrap();
            assert_eq!(fs::read_to_string(dir.path().join("file")).unwrap(), "content");
            assert_eq!(names(dir.path()), ["file", "link", "new"]);
        }
    }

    type Mover = fn(&Path, &Path, bool) -> Result<bool, Failure>;

    #[test]
    fn an_existing_target_is_replaced_only_on_request() {
        for mover in [moved as Mover, moved_far] {
            let dir = tempfile::tempdir().unwrap();
            let (from, to) = (dir.path().join("from"), dir.path().join("to"));
            fs::write(&from, "new").unwrap();
            fs::write(&to, "old").unwrap();
            assert_eq!(code(mover(&from, &to, false)), ErrorCode::Exists);
            assert_eq!(fs::read_to_string(&to).unwrap(), "old");
            mover(&from, &to, true).unwrap();
            assert_eq!(fs::read_to_string(&to).unwrap(), "new");
            assert_eq!(names(dir.path()), ["to"]);
        }
    }

    #[test]
    fn a_failed_move_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let tree = tree(dir.path());
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(code(moved(&dir.path().join("no"), &file, true)), ErrorCode::NotFound);
        assert_eq!(code(moved(&tree, &tree.join("below/itself"), false)), ErrorCode::InvalidArgument);
        assert_eq!(code(moved(&file, &tree, true)), ErrorCode::IsDirectory);
        assert_eq!(code(moved(&tree, &file, true)), ErrorCode::NotADirectory);
        assert_eq!(code(moved(Path::new("/"), &file, true)), ErrorCode::InvalidArgument);
        fifo(&tree);
        assert_eq!(code(moved_far(&tree, &dir.path().join("far"), false)), ErrorCode::NotAFile);
        assert!(tree.join("sub/file").exists() && tree.join("pipe").exists());
        assert_eq!(names(dir.path()), ["file", "tree"]);
    }
}
