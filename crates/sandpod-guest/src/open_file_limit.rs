//! Limits of open files, for the guest and for its commands.
//!
//! Each running command takes some descriptors of the guest, so it raises its limit. Commands get the limit that the guest
//! was started with: programs that use `select` break with a higher one.

use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit at start, once it was raised.
static STARTED_WITH: OnceLock<Rlimit> = OnceLock::new();

/// Raises this process's limit to the maximum.
pub(crate) fn raise() {
    let given = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: given.maximum, maximum: given.maximum };
    // If that fails, the guest works with the limit that it has.
    if setrlimit(Resource::Nofile, raised).is_ok() {
        let _ = STARTED_WITH.set(given);
    }
}

/// Restores the limit that the guest was started with, in a process that becomes a command. Makes system calls only.
pub(crate) fn lower() -> Result<(), Errno> {
    STARTED_WITH.get().map_or(Ok(()), |given| setrlimit(Resource::Nofile, *given))
}
