//! How many files the guest may have open, and how many its commands may.
//!
//! Each process of a sandbox takes some files of the guest's. Its commands have the limit that the guest was started with:
//! programs that use `select` break with a higher one.

use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What this process was started with, once it has more.
static STARTED_WITH: OnceLock<Rlimit> = OnceLock::new();

/// Raises this process's own limit as far as it may.
pub(crate) fn raise() {
    let given = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: given.maximum, maximum: given.maximum };
    // A guest that may not have more works with what it has.
    if setrlimit(Resource::Nofile, raised).is_ok() {
        let _ = STARTED_WITH.set(given);
    }
}

/// Gives this process, which becomes a command, the limit that the guest was started with. It makes system calls and
/// nothing else.
pub(crate) fn lower() -> Result<(), Errno> {
    STARTED_WITH.get().map_or(Ok(()), |given| setrlimit(Resource::Nofile, *given))
}
