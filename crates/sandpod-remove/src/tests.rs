use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::{env, fs, thread};

use rustix::fs::CWD;
use rustix::process::{Uid, geteuid};
use tempfile::TempDir;

use super::*;

const DEEP: usize = 20_000;

/// Less than one stack frame per level, and more than a removal needs.
const SMALL_STACK: usize = 128 << 10;

/// Creates nested directories with a file in the deepest, and returns the deepest. Its path exceeds the maximum length.
fn make_deep(top: &Path, levels: usize) -> OwnedFd {
    fs::create_dir(top).unwrap();
    let mut here = rustix::fs::open(top, DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..levels {
        rustix::fs::mkdirat(&here, "d", Mode::RWXU).unwrap();
        here = rustix::fs::openat(&here, "d", DIRECTORY, Mode::empty()).unwrap();
    }
    rustix::fs::openat(&here, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
    here
}

/// Returns a directory in memory, where twenty thousand levels take a second; on a disk they take most of a minute.
fn dir_in_memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Runs `test` as an ordinary user, whom file modes restrict, in a directory of that user.
fn as_nobody(test: impl FnOnce(&Path) + Send) {
    let dir = tempfile::tempdir().unwrap();
    let unprivileged = || {
        if geteuid().is_root() {
            let nobody = Uid::from_raw(65534);
            rustix::fs::chown(dir.path(), Some(nobody), None).unwrap();
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        }
        test(dir.path());
    };
    // Only this thread changes its user, and it ends here.
    thread::scope(|scope| scope.spawn(unprivileged).join().unwrap());
}

#[test]
fn tree_of_any_depth_is_removed_with_a_small_stack() {
    let dir = dir_in_memory();
    let tree = dir.path().join("tree");
    make_deep(&tree, DEEP);
    let top = tree.clone();
    let removing = thread::Builder::new().stack_size(SMALL_STACK);
    removing.spawn(move || remove(CWD, &top, NoAccess::Fail)).unwrap().join().unwrap().unwrap();
    assert!(!tree.exists());
}

#[test]
fn tree_of_any_depth_is_removed_with_few_open_files() {
    const INNER: &str = "SANDPOD_TEST_TREE";
    if let Some(tree) = env::var_os(INNER) {
        return remove(CWD, tree, NoAccess::Grant).unwrap();
    }
    let dir = dir_in_memory();
    let tree = dir.path().join("tree");
    make_deep(&tree, DEEP);
    let mut inner = Command::new("sh");
    inner.args(["-c", &format!("ulimit -n {} && exec \"$0\" \"$@\"", MAX_OPEN + 16)]);
    inner.arg(env::current_exe().unwrap());
    inner.args(["--exact", "tests::tree_of_any_depth_is_removed_with_few_open_files"]).env(INNER, &tree);
    let output = inner.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(!tree.exists());
}

#[test]
fn many_deep_trees_are_removed_even_if_the_names_for_moving_are_taken() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for number in 0..20 {
        make_deep(&tree.join(format!("branch-{number}")), MAX_OPEN * 2);
        let taken = tree.join(format!(".removed-{number}"));
        match number % 3 {
            0 => drop(make_deep(&taken, MAX_OPEN * 3)),
            1 => fs::create_dir(&taken).unwrap(),
            _ => fs::write(&taken, "x").unwrap(),
        }
    }
    remove(CWD, &tree, NoAccess::Fail).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn links_are_removed_and_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (kept, tree) = (dir.path().join("kept"), dir.path().join("tree"));
    fs::create_dir(&kept).unwrap();
    fs::write(kept.join("file"), "x").unwrap();
    let deepest = make_deep(&tree, MAX_OPEN * 2);
    symlink(&kept, tree.join("link")).unwrap();
    rustix::fs::symlinkat(&kept, &deepest, "link").unwrap();
    let link = dir.path().join("link");
    symlink(&tree, &link).unwrap();

    remove(CWD, &link, NoAccess::Grant).unwrap();
    assert!(tree.exists() && fs::symlink_metadata(&link).is_err());
    remove(CWD, &tree, NoAccess::Grant).unwrap();
    assert!(!tree.exists() && kept.join("file").exists());
}

#[test]
fn closed_directories_are_granted_or_refused() {
    as_nobody(|dir| {
        let tree = dir.join("tree");
        for mode in [0o000, 0o100, 0o400, 0o500] {
            let closed = tree.join("above/closed");
            fs::create_dir_all(closed.join("below")).unwrap();
            fs::write(closed.join("below/file"), "x").unwrap();
            chmod(&closed, mode);
            chmod(&tree.join("above"), 0o500);
            assert_eq!(remove(CWD, &tree, NoAccess::Fail), Err(Errno::ACCESS), "{mode:o}");
            remove(CWD, &tree, NoAccess::Grant).unwrap();
            assert!(!tree.exists());
        }
    });
}

#[test]
fn empty_closed_directory_is_removed() {
    as_nobody(|dir| {
        let tree = dir.join("tree");
        fs::create_dir_all(tree.join("closed")).unwrap();
        chmod(&tree.join("closed"), 0o000);
        remove(CWD, &tree, NoAccess::Fail).unwrap();
    });
}

#[test]
fn closed_directories_are_granted_at_any_depth() {
    as_nobody(|dir| {
        let tree = dir.join("tree");
        let mut here = make_deep(&tree, MAX_OPEN * 4);
        for _ in 0..MAX_OPEN * 3 {
            rustix::fs::chmodat(&here, "..", Mode::XUSR, AtFlags::empty()).unwrap();
            here = rustix::fs::openat(&here, "..", DIRECTORY | OFlags::PATH, Mode::empty()).unwrap();
        }
        remove(CWD, &tree, NoAccess::Grant).unwrap();
        assert!(!tree.exists());
    });
}

#[test]
fn content_of_a_protected_directory_is_not_changed() {
    as_nobody(|dir| {
        let tree = dir.join("parent/tree");
        fs::create_dir_all(&tree).unwrap();
        fs::write(tree.join("file"), "x").unwrap();
        chmod(&dir.join("parent"), 0o500);
        assert_eq!(remove(CWD, &tree, NoAccess::Grant), Err(Errno::ACCESS));
        assert!(tree.join("file").exists());
        chmod(&dir.join("parent"), 0o700);
    });
}

#[test]
fn missing_path_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(remove(CWD, dir.path().join("no"), NoAccess::Grant), Err(Errno::NOENT));
}

#[test]
fn two_concurrent_removals_both_succeed() {
    for _ in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        make_deep(&tree, MAX_OPEN * 4);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| match remove(CWD, &tree, NoAccess::Fail) {
                    Ok(()) | Err(Errno::NOENT) => {} // the other one had finished
                    Err(errno) => panic!("{errno}"),
                });
            }
        });
        assert!(!tree.exists());
    }
}

#[test]
fn refilled_directory_is_read_again_a_limited_number_of_times() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("tree/refilled")).unwrap();
    fs::write(dir.path().join("tree/refilled/file"), "x").unwrap();
    let dir = fs::File::open(dir.path()).unwrap();
    let closed = NoAccess::Fail;
    let mut removal =
        Removal { dir: dir.as_fd(), closed, levels: Vec::new(), moved: 0, rounds: MAX_ROUNDS - 2 };
    removal.enter(c"tree".to_owned()).unwrap();
    removal.leave().unwrap();
    assert_eq!(removal.levels.len(), 1);
    assert_eq!(removal.leave(), Err(Errno::NOTEMPTY));
}

#[test]
fn concurrent_writer_is_outrun_or_reported() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("refilled")).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..4 {
            let (tree, done) = (&tree, &done);
            scope.spawn(move || {
                while !done.load(Relaxed) && tree.exists() {
                    let _ = fs::create_dir_all(tree.join(format!("refilled/{number}/below")));
                }
            });
        }
        let removed = remove(CWD, &tree, NoAccess::Fail);
        done.store(true, Relaxed);
        assert!(matches!(removed, Ok(()) | Err(Errno::NOTEMPTY)), "{removed:?}");
    });
}
