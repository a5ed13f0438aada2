//! Changes of one file take turns.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sandpod_protocol::Failure;

use super::facts::Facts;
use super::place::Place;

/// A fixed number of locks bounds what is kept; files that share one only wait longer.
static LOCKS: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];

/// The right to change files, as far as this guest goes. Commands know nothing of it.
pub(super) struct Turn {
    _guards: Vec<MutexGuard<'static, ()>>,
}

/// Waits for the turn at all of these places. Nobody may wait who holds one.
pub(super) fn take<'a>(places: impl IntoIterator<Item = &'a Place>) -> Result<Turn, Failure> {
    let mut locks = places.into_iter().map(lock_of).collect::<Result<Vec<_>, _>>()?;
    // In one order for all, so that no two wait for each other.
    locks.sort_unstable();
    locks.dedup();
    let lock = |number: usize| LOCKS[number].lock().unwrap_or_else(PoisonError::into_inner);
    Ok(Turn { _guards: locks.into_iter().map(lock).collect() })
}

/// By which directory it is and the name, however the path was written.
fn lock_of(place: &Place) -> Result<usize, Failure> {
    let dir = rustix::fs::fstat(place.dir()).map_err(|errno| place.refused(errno))?;
    let mut hasher = DefaultHasher::new();
    (Facts::from(dir).identity, place.name()).hash(&mut hasher);
    Ok(usize::try_from(hasher.finish() % LOCKS.len() as u64).unwrap_or_default())
}
