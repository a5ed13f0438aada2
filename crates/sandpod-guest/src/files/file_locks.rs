//! Locks for changes of one file.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sandpod_protocol::Failure;

use super::file_stat::FileStat;
use super::resolver::Location;

/// The number of locks is fixed, which bounds their memory; files that share one only wait longer.
static LOCKS: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];

/// Locks of files, held until dropped. Commands are not bound by them.
pub(super) struct FileLocks {
    _guards: Vec<MutexGuard<'static, ()>>,
}

/// Locks all of these locations. The caller must not hold any other lock.
pub(super) fn lock<'a>(locations: impl IntoIterator<Item = &'a Location>) -> Result<FileLocks, Failure> {
    let mut locks = locations.into_iter().map(lock_index).collect::<Result<Vec<_>, _>>()?;
    // Always in the same order, to prevent deadlocks.
    locks.sort_unstable();
    locks.dedup();
    let lock = |number: usize| LOCKS[number].lock().unwrap_or_else(PoisonError::into_inner);
    Ok(FileLocks { _guards: locks.into_iter().map(lock).collect() })
}

/// Returns the lock of a directory's identity and a name, so that all paths to a file have the same one.
fn lock_index(location: &Location) -> Result<usize, Failure> {
    let dir = rustix::fs::fstat(location.dir()).map_err(|errno| location.refused(errno))?;
    let mut hasher = DefaultHasher::new();
    (FileStat::from(dir).identity, location.name()).hash(&mut hasher);
    Ok(usize::try_from(hasher.finish() % LOCKS.len() as u64).unwrap_or_default())
}
