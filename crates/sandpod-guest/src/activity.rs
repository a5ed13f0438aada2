//! Tracks activity, for the idle timeout.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// Counts the running calls.
#[derive(Clone)]
pub(crate) struct Activity(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Changes only while `state` is locked.
    ended: watch::Sender<bool>,
}

struct State {
    running: usize,
    last: Instant,
}

impl Default for Activity {
    fn default() -> Self {
        let state = Mutex::new(State { running: 0, last: Instant::now() });
        Self(Arc::new(Shared { state, ended: watch::Sender::new(false) }))
    }
}

impl Activity {
    /// Counts a call until the returned value is dropped. Never resolves after the guest was ended for being idle:
    /// the client then observes the end of the stream.
    pub(crate) async fn begin(&self) -> Call {
        let may_begin = self.change(|state| {
            let may_begin = !*self.0.ended.borrow();
            state.running += usize::from(may_begin);
            may_begin
        });
        if !may_begin {
            std::future::pending::<()>().await;
        }
        Call(self.clone())
    }

    /// Returns the time at which the last call ended, or now if a call runs.
    pub(crate) fn idle_since(&self) -> Instant {
        self.change(|state| state.idle_since())
    }

    /// Returns whether no call ran for `least`. If so, no new call can begin: check and end are one atomic step.
    pub(crate) fn end_if_idle(&self, least: Duration) -> bool {
        self.change(|state| {
            let ends = *self.0.ended.borrow() || state.running == 0 && state.last.elapsed() >= least;
            self.0.ended.send_replace(ends);
            ends
        })
    }

    /// Resolves when [`end_if_idle`](Self::end_if_idle) has ended the guest.
    pub(crate) async fn ended(&self) {
        // This cannot fail: `self` holds the sender.
        let _ = self.0.ended.subscribe().wait_for(|ended| *ended).await;
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    fn idle_since(&self) -> Instant {
        if self.running > 0 { Instant::now() } else { self.last }
    }
}

/// A running call.
pub(crate) struct Call(Activity);

impl Drop for Call {
    fn drop(&mut self) {
        self.0.change(|state| {
            state.running -= 1;
            state.last = Instant::now();
        });
    }
}
