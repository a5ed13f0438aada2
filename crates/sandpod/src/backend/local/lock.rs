//! The lock of a local sandbox: a file that is locked while a guest runs, and holds its process id.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt as _;

use rustix::process::Pid;

/// An open lock file. Its name may be deleted meanwhile.
#[derive(Debug)]
pub(super) struct Lock(pub(super) File);

impl Lock {
    /// Takes the lock, unless a guest has it or another process tests it.
    pub(super) fn try_hold(&self) -> io::Result<bool> {
        is_free(self.0.try_lock())
    }

    /// Reports whether a guest holds the lock.
    pub(super) fn is_held(&self) -> io::Result<bool> {
        let is_free = is_free(self.0.try_lock_shared())?;
        if is_free {
            self.0.unlock()?;
        }
        Ok(!is_free)
    }

    /// Returns the process id of the guest, if it has started.
    pub(super) fn guest(&self) -> Option<Pid> {
        let mut number = [0; 16];
        let length = self.0.read_at(&mut number, 0).ok()?;
        Pid::from_raw(str::from_utf8(&number[..length]).ok()?.parse().ok()?)
    }
}

fn is_free(locked: Result<(), TryLockError>) -> io::Result<bool> {
    match locked {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}
