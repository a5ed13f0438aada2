//! Giving a file, a link or a directory another path.

use std::io;
use std::sync::Arc;

use rustix::fs::RenameFlags;
use rustix::io::Errno;
use sandpod_protocol::Failure;
use sandpod_protocol::v1::{ErrorCode, FileKind, MoveRequest, MoveResponse};

use super::delete::remove;
use super::facts::Facts;
use super::notes::Temporary;
use super::place::{DIRECTORY_MODE, Place, Purpose, Reach};
use super::staged::Staged;
use super::tree::{Reading, Writing, make_link, settle};
use super::turns::{self, Turn};

/// Renames; where that can't be, because the paths are in two file systems, copies and removes.
pub(super) fn move_path(request: &MoveRequest, reach: &Reach) -> Result<MoveResponse, Failure> {
    move_by(request, reach, rename)
}

fn move_by(
    request: &MoveRequest,
    reach: &Reach,
    rename: impl FnOnce(&Place, &Place, bool) -> rustix::io::Result<()>,
) -> Result<MoveResponse, Failure> {
    let from = reach.at(&request.from, Purpose::MOVE)?;
    from.found()?;
    let to = Arc::new(reach.made_at(&request.to, Purpose::MOVE)?);
    for (place, path) in [(&from, &request.from), (&*to, &request.to)] {
        if place.name() == "." {
            let message = format!("'{path}' is not moved: name an entry of a directory, not '/' or '..'");
            return Err(Failure::new(ErrorCode::InvalidArgument, message).at(path));
        }
    }
    let turn = turns::take([&from, &*to])?;
    match rename(&from, &to, request.replace) {
        Ok(()) => Ok(MoveResponse { atomic: true }),
        Err(Errno::XDEV) => {
            copy(&from, &to, request.replace, reach, turn)?;
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

fn rename(from: &Place, to: &Place, replace: bool) -> rustix::io::Result<()> {
    let plainly = || rustix::fs::renameat(from.dir(), from.name(), to.dir(), to.name());
    if replace {
        return plainly();
    }
    let renamed =
        rustix::fs::renameat_with(from.dir(), from.name(), to.dir(), to.name(), RenameFlags::NOREPLACE);
    match renamed {
        // Some file systems can't promise it: then a look before has to do.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => match to.now() {
            Ok(Some(_)) => Err(Errno::EXIST),
            _ => plainly(),
        },
        renamed => renamed,
    }
}

fn exists(to: &Place) -> Failure {
    let path = to.path().to_string_lossy();
    let message = format!("'{path}' is there already: choose another path, or replace it");
    Failure::new(ErrorCode::Exists, message).at(path)
}

/// Copies to another file system. What is edited meanwhile is not lost: a file is copied in our turn, and
/// files of a directory each in theirs.
fn copy(from: &Place, to: &Arc<Place>, replace: bool, reach: &Reach, turn: Turn) -> Result<(), Failure> {
    let facts = from.found()?;
    if !replace && to.now()?.is_some() {
        return Err(exists(to));
    }
    match facts.kind {
        FileKind::File => copy_file(from, to, reach, &turn),
        FileKind::Directory => {
            drop(turn);
            copy_directory(from, to, facts, reach)
        }
        FileKind::Link => {
            let target = from.link_target()?;
            make_link(to, target.as_os_str(), facts.modified_ns, &reach.notes)
        }
        FileKind::Other | FileKind::Unspecified => Err(from.refused(Errno::XDEV)),
    }
}

fn copy_file(from: &Place, to: &Arc<Place>, reach: &Reach, turn: &Turn) -> Result<(), Failure> {
    let (file, facts) = from.open_regular()?;
    let staged = Staged::new(to.clone(), &reach.notes, Some(facts.mode))?;
    io::copy(&mut &file, &mut staged.file()).map_err(|error| to.refused(error))?;
    let modified = file.metadata().and_then(|metadata| metadata.modified());
    modified.and_then(|time| staged.file().set_modified(time)).map_err(|error| to.refused(error))?;
    staged.commit(turn)?;
    Ok(())
}

/// Copies into a temporary directory, which takes the name when it is whole.
fn copy_directory(from: &Place, to: &Place, facts: Facts, reach: &Reach) -> Result<(), Failure> {
    let reading = Reading::of(from, reach)?;
    let refused = |errno: Errno| to.refused(errno);
    let mut temporary = Temporary::new(to.dir(), &reach.notes).map_err(refused)?;
    rustix::fs::mkdirat(temporary.dir(), temporary.name(), DIRECTORY_MODE).map_err(refused)?;
    let root = reach.below(temporary.dir(), temporary.name().as_ref()).map_err(refused)?;
    let mut writing = Writing::into(root, to.path().to_owned(), reach);
    for part in reading {
        writing.take(part?)?;
    }
    let skipped = writing.finish()?.skipped;
    if skipped > 0 {
        let path = from.path().to_string_lossy();
        let message = format!(
            "'{path}' has {skipped} sockets, devices or pipes, which can't be moved to another file system: \
             remove them first"
        );
        return Err(Failure::new(ErrorCode::NotAFile, message).at(path));
    }
    settle(temporary.dir(), temporary.name(), facts.mode, facts.modified_ns).map_err(refused)?;
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
        move_path(&request(from, to, replace), &Reach::default()).map(|response| response.atomic)
    }

    /// Moves as between two file systems.
    fn moved_far(from: &Path, to: &Path, replace: bool) -> Result<bool, Failure> {
        move_by(&request(from, to, replace), &Reach::default(), |_, _, _| Err(Errno::XDEV))
            .map(|response| response.atomic)
    }

    /// A directory with a file, a link and a directory in it.
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
    fn files_links_and_directories_are_renamed_into_directories_that_are_made() {
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
    fn what_is_there_is_replaced_only_when_asked_for() {
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
    fn what_can_not_be_moved_stays() {
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
