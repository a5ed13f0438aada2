//! The record of when a sandbox was used last.
//!
//! It is written while a sandbox is used, at most once a [`period`], because every write is a request to the API server:
//! more often where an idle time to live depends on it. So it may be late by the [`doubt`]. A cleanup with a time of its
//! own asks the guest where that matters ([`sweep`](super::sweep)).

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use sandpod_client::Observer;

use crate::SandboxId;
use crate::backend::Backend;

/// The record is not written more often.
const MIN_PERIOD: Duration = Duration::from_secs(30);

/// How often it is written for a sandbox without an idle time to live.
const UNHURRIED: Duration = Duration::from_secs(60);

/// So often within a period what could not be written is tried again.
const RETRIES: u32 = 10;

/// How often the record is written while a sandbox is used, at most.
pub(super) fn period(idle_ttl: Option<Duration>) -> Duration {
    idle_ttl.map_or(UNHURRIED, |idle_ttl| MIN_PERIOD.max(idle_ttl / 10).min(idle_ttl / 3))
}

/// How long a sandbox may have been used without that being in its record.
pub(super) fn doubt(idle_ttl: Option<Duration>) -> Duration {
    period(idle_ttl) + if idle_ttl.is_none() { MIN_PERIOD } else { Duration::ZERO }
}

/// Whether what the record says of the last use needs no renewal by who begins to use the sandbox now.
pub(super) fn is_fresh(used_at: SystemTime, idle_ttl: Option<Duration>) -> bool {
    idle_ttl.is_none() && used_at.elapsed().is_ok_and(|age| age < MIN_PERIOD)
}

/// Hears of a sandbox's calls and writes its record, in a task that is there while there are calls.
pub(super) struct Activity {
    backend: Arc<dyn Backend>,
    id: SandboxId,
    claim: String,
    period: Duration,
    state: Mutex<State>,
}

struct State {
    running: usize,
    /// There was a call since the record was written.
    used: bool,
    /// The task is there.
    recording: bool,
}

impl Activity {
    /// Nothing is written before [`start`](Self::start).
    pub(super) fn new(
        backend: Arc<dyn Backend>,
        id: SandboxId,
        claim: String,
        idle_ttl: Option<Duration>,
    ) -> Arc<Self> {
        let state = Mutex::new(State { running: 0, used: false, recording: true });
        Arc::new(Self { backend, id, claim, period: period(idle_ttl), state })
    }

    /// From now on calls are recorded. `fresh`: this moment is, already.
    pub(super) fn start(self: &Arc<Self>, fresh: bool) {
        self.state().used = false;
        let stale = (!fresh).then(|| self.clone());
        let (activity, period) = (Arc::downgrade(self), self.period);
        tokio::spawn(async move {
            let mut noted = match stale {
                Some(activity) => activity.touch().await,
                None => true,
            };
            // Until there was no call for a period, or nobody has the sandbox any more: its last calls are within the doubt.
            loop {
                let pause = if noted { jittered(period) } else { period / RETRIES };
                tokio::time::sleep(pause).await;
                let Some(activity) = activity.upgrade().filter(|activity| activity.is_due()) else { return };
                noted = activity.touch().await;
            }
        });
    }

    /// Whether it is recorded now. If not, it is still to be.
    async fn touch(&self) -> bool {
        let touched = self.backend.record_activity(&self.id, &self.claim).await;
        if let Err(error) = &touched {
            tracing::warn!(id = %self.id, %error, "that the sandbox is used could not be recorded");
            self.state().used = true;
        }
        touched.is_ok()
    }

    fn is_due(&self) -> bool {
        let mut state = self.state();
        let used = state.used || state.running > 0;
        (state.used, state.recording) = (false, used);
        used
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The calls hold the observer, and the task is started by one of them.
#[derive(Debug)]
pub(super) struct Calls(pub(super) Arc<Activity>);

impl Observer for Calls {
    fn begun(&self) {
        let mut state = self.0.state();
        (state.running, state.used) = (state.running + 1, true);
        if !std::mem::replace(&mut state.recording, true) {
            drop(state);
            self.0.start(false);
        }
    }

    fn ended(&self) {
        let mut state = self.0.state();
        (state.running, state.used) = (state.running - 1, true);
    }
}

impl fmt::Debug for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Activity").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Less by up to a tenth, so that many sandboxes don't write at the same time.
fn jittered(period: Duration) -> Duration {
    period.mul_f64(1.0 - fastrand::f64() / 10.0)
}
