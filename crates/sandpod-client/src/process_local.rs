//! One value for all of a process, but not for the children that it forks.

use std::process;
use std::sync::{Arc, Mutex};

/// How often a lock that another thread holds is tried.
const TRIES: usize = 100;

/// A value that is made when a process first asks for it. A forked child gets another one: what its parent's threads
/// held when it forked, nobody in it gives back.
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
    /// A value that isn't there yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// This process's value.
    #[must_use]
    pub fn get(&self) -> Arc<T> {
        for _ in 0..TRIES {
            if let Ok(mut value) = self.0.try_lock() {
                let id = process::id();
                if value.as_ref().is_none_or(|(owner, _)| *owner != id) {
                    // Not dropped in a child: it belongs to the parent.
                    std::mem::forget(value.replace((id, Arc::default())));
                }
                return value.as_ref().map(|(_, value)| value.clone()).unwrap_or_default();
            }
            std::thread::yield_now();
        }
        // A thread that isn't in this process holds the lock.
        Arc::default()
    }
}

impl<T: Default> Default for ProcessLocal<T> {
    fn default() -> Self {
        Self::new()
    }
}
