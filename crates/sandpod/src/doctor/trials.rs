//! Trials of what this user can do on this machine, as the guest of a local sandbox does it.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::io::Errno;
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::backend::local::{can_limit_memory, changed_user};

/// The error with which a child process reports success: it executes no program.
const DONE: Errno = Errno::CANCELED;

/// The results of the trials.
#[derive(Debug)]
pub(super) struct Trials {
    /// Whether a user namespace gives the right to make other namespaces.
    pub(super) namespaces: io::Result<()>,
    /// Whether a cgroup can limit memory.
    pub(super) memory_limit: bool,
}

impl Trials {
    pub(super) fn run() -> Self {
        Self { namespaces: make_namespaces(), memory_limit: can_limit_memory() }
    }
}

/// Makes namespaces in a child process. A guest of root changes its user first.
#[expect(unsafe_code, reason = "code in a child process before its exec has no safe interface")]
fn make_namespaces() -> io::Result<()> {
    let mut child = Command::new("/");
    if let Some(user) = changed_user() {
        child.uid(user).gid(user);
    }
    // SAFETY: the closure only makes system calls, and no descriptors are unshared.
    unsafe {
        child.pre_exec(|| {
            unshare_unsafe(UnshareFlags::NEWUSER)?;
            // AppArmor may allow a user namespace, and deny all rights in it.
            unshare_unsafe(UnshareFlags::NEWNS)?;
            Err(DONE.into())
        });
    }
    match child.spawn() {
        Err(cause) if cause.raw_os_error() == Some(DONE.raw_os_error()) => Ok(()),
        Err(cause) => Err(cause),
        Ok(mut child) => child.wait().map(drop),
    }
}
