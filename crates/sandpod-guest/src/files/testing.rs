//! What the tests of file operations share.

use std::fmt::Debug;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::{fs, thread};

use rustix::process::{Uid, geteuid};
use sandpod_protocol::Failure;
use sandpod_protocol::v1::ErrorCode;

/// The code of what must have failed.
pub(crate) fn code<T>(result: Result<T, Failure>) -> ErrorCode {
    match result {
        Ok(_) => panic!("it must fail"),
        Err(failure) => failure.code(),
    }
}

/// A path as callers send it.
pub(crate) fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// A named pipe.
pub(crate) fn fifo(dir: &Path) -> PathBuf {
    let path = dir.join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
    path
}

/// What is in a directory, sorted.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = fs::read_dir(dir).unwrap().map(name).collect();
    names.sort();
    names
}

/// The permission bits of a file.
pub(crate) fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Sets the permission bits of a file.
pub(crate) fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Runs `test` with the rights of an ordinary user: root may do anything.
pub(crate) fn as_nobody<T: Send + Debug>(test: impl FnOnce() -> T + Send) -> T {
    let unprivileged = || {
        if geteuid().is_root() {
            let nobody = Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        }
        test()
    };
    // Only this thread changes its user, and it ends here.
    thread::scope(|scope| scope.spawn(unprivileged).join().unwrap())
}
