//! A value per process that a forked child does not inherit.

use std::process;
use std::sync::{Arc, Mutex};

/// How often a lock that another thread holds is tried.
const TRIES: usize = 100;

/// A value that each process creates on first use. A forked child gets a new one, because locks that other threads of the
/// parent held during the fork stay locked in the child.
///
/// ```
/// use std::sync::Arc;
/// use sandpod_client::ProcessLocal;
///
/// static NAMES: ProcessLocal<Vec<String>> = ProcessLocal::new();
/// assert!(Arc::ptr_eq(&NAMES.get(), &NAMES.get()));
/// ```
#[derive(Debug)]
pub struct ProcessLocal<T>(Mutex<Option<(u32, Arc<T>)>>);

impl<T: Default> ProcessLocal<T> {
    /// Creates an empty cell.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Returns this process's value.
    #[must_use]
    pub fn get(&self) -> Arc<T> {
        for _ in 0..TRIES {
            if let Ok(mut value) = self.0.try_lock() {
                let id = process::id();
                if value.as_ref().is_none_or(|(owner, _)| *owner != id) {
                    // Leaked in a child: the old value belongs to the parent.
                    std::mem::forget(value.replace((id, Arc::default())));
                }
                return value.as_ref().map(|(_, value)| value.clone()).unwrap_or_default();
            }
            std::thread::yield_now();
        }
        // The lock is held by a thread that does not exist in this process.
        Arc::default()
    }
}

impl<T: Default> Default for ProcessLocal<T> {
    fn default() -> Self {
        Self::new()
    }
}
