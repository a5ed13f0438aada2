//! Whether somebody uses the guest, for its idle time.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

/// Counts the calls that run.
#[derive(Clone)]
pub(crate) struct Activity(Arc<Mutex<State>>);

struct State {
    running: usize,
    last: Instant,
}

impl Default for Activity {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State { running: 0, last: Instant::now() })))
    }
}

impl Activity {
    /// Counts a call until what it returns is dropped.
    pub(crate) fn begin(&self) -> Call {
        self.change(|state| state.running += 1);
        Call(self.clone())
    }

    /// Since when there is no call; now, if there is one.
    pub(crate) fn idle_since(&self) -> Instant {
        self.change(|state| if state.running > 0 { Instant::now() } else { state.last })
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A call that runs.
pub(crate) struct Call(Activity);

impl Drop for Call {
    fn drop(&mut self) {
        self.0.change(|state| {
            state.running -= 1;
            state.last = Instant::now();
        });
    }
}
