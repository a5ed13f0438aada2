//! Changes of one file take turns.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A fixed number of locks bounds what is kept; files that share one only wait longer.
static LOCKS: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];

/// The right to change a file, as far as this guest goes. Commands know nothing of it.
pub(super) struct Turn {
    _guard: MutexGuard<'static, ()>,
}

/// Waits for the turn at the file with this canonical path. Nobody may hold two turns.
pub(super) fn take(path: &Path) -> Turn {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    let count = LOCKS.len() as u64;
    let lock = usize::try_from(hasher.finish() % count).unwrap_or_default();
    Turn { _guard: LOCKS[lock].lock().unwrap_or_else(PoisonError::into_inner) }
}
