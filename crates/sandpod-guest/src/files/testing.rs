//! Helpers for tests of file operations.

use std::fmt::Debug;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::{fs, thread};

use rustix::process::{Uid, geteuid};
use sandpod_protocol::Failure;
use sandpod_protocol::v1::ErrorCode;

use crate::disabled_kernel_features::DisabledKernelFeatures;

/// Returns the kernel features that are disabled in this test run.
pub(crate) fn disabled_features() -> DisabledKernelFeatures {
    std::env::var("SANDPOD_DISABLED_KERNEL_FEATURES").unwrap_or_default().parse().unwrap()
}

/// Returns the code of a failure.
pub(crate) fn code<T>(result: Result<T, Failure>) -> ErrorCode {
    match result {
        Ok(_) => panic!("it must fail"),
        Err(failure) => failure.code(),
    }
}

/// Converts a path for a request.
pub(crate) fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// Makes a named pipe.
pub(crate) fn fifo(dir: &Path) -> PathBuf {
    let path = dir.join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
    path
}

/// Makes a directory with that many nested levels. No path is as long as that.
pub(crate) fn make_deep(top: &Path, levels: usize) {
    fs::create_dir(top).unwrap();
    let (flags, mode) = (rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::RWXU);
    let mut here = rustix::fs::open(top, flags, mode).unwrap();
    for _ in 0..levels {
        rustix::fs::mkdirat(&here, "d", mode).unwrap();
        here = rustix::fs::openat(&here, "d", flags, mode).unwrap();
    }
}

/// Returns the names in a directory, sorted.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = fs::read_dir(dir).unwrap().map(name).collect();
    names.sort();
    names
}

/// Returns the permission bits of a file.
pub(crate) fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Sets the permission bits of a file.
pub(crate) fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Runs the calling test once more, alone and in a mount namespace of its own. Returns true in there, and false to the
/// caller, which then returns.
#[expect(clippy::print_stderr, reason = "a skipped test is reported")]
pub(crate) fn in_own_mounts(test: &str) -> bool {
    const INNER: &str = "SANDPOD_TEST_INNER";
    if std::env::var_os(INNER).is_some_and(|inner| inner == test) {
        return true;
    }
    if !geteuid().is_root() {
        eprintln!("SKIPPED: mounts need root");
        return false;
    }
    // A directory with a mount in it can be removed only from outside the namespace.
    let temporary = tempfile::tempdir().unwrap();
    let mut inner = std::process::Command::new("unshare");
    inner.args(["--mount", "--propagation", "private"]).arg(std::env::current_exe().unwrap());
    inner.args(["--exact", test, "--nocapture"]).env(INNER, test).env("TMPDIR", temporary.path());
    let output = inner.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    false
}

/// Mounts a small file system.
pub(crate) fn mount_tmpfs(at: &Path, options: &str) {
    let options = std::ffi::CString::new(options).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("tmpfs", at, "tmpfs", flags, options.as_c_str()).unwrap();
}

/// Runs `test` as an unprivileged user, because root may do anything.
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
