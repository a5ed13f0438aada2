//! The record of a sandbox's last use.
//!
//! It is written while a sandbox is used, at most once per [`period`], because every write is a request to the API
//! server. The period depends on the idle time to live. The record may be late by [`doubt`]: if that matters for a
//! cleanup with its own idle time, the cleanup asks the guest ([`sweep`](super::sweep)).

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use sandpod_client::Observer;

use crate::SandboxId;
use crate::backend::Backend;

/// The lower limit of a period, unless the idle time to live is very short.
const MIN_PERIOD: Duration = Duration::from_secs(30);

/// The time between two writes for a sandbox without an idle time to live.
const UNHURRIED: Duration = Duration::from_secs(60);

/// The number of retries of a failed write within a period.
const RETRIES: u32 = 10;

/// Returns the shortest time between two writes of a sandbox's record.
pub(super) fn period(idle_ttl: Option<Duration>) -> Duration {
    idle_ttl.map_or(UNHURRIED, |idle_ttl| MIN_PERIOD.max(idle_ttl / 10).min(idle_ttl / 3))
}

/// Returns the longest time by which the record may be late.
pub(super) fn doubt(idle_ttl: Option<Duration>) -> Duration {
    period(idle_ttl) + if idle_ttl.is_none() { MIN_PERIOD } else { Duration::ZERO }
}

/// Returns whether the record is recent enough that a new user of the sandbox need not write it.
pub(super) fn is_fresh(used_at: SystemTime, idle_ttl: Option<Duration>) -> bool {
    idle_ttl.is_none() && used_at.elapsed().is_ok_and(|age| age < MIN_PERIOD)
}

/// Observes a sandbox's calls and writes its record, in a task that runs while there are calls.
pub(super) struct Activity {
    backend: Arc<dyn Backend>,
    id: SandboxId,
    uid: String,
    period: Duration,
    state: Mutex<State>,
}

struct State {
    running: usize,
    /// Whether there was a call since the last write.
    used: bool,
    /// Whether the task runs.
    recording: bool,
}

impl Activity {
    /// Creates an activity that writes nothing before [`start`](Self::start).
    pub(super) fn new(
        backend: Arc<dyn Backend>,
        id: SandboxId,
        uid: String,
        idle_ttl: Option<Duration>,
    ) -> Arc<Self> {
        let state = Mutex::new(State { running: 0, used: false, recording: true });
        Arc::new(Self { backend, id, uid, period: period(idle_ttl), state })
    }

    /// Records calls from now on. With `fresh` the record is up to date.
    pub(super) fn start(self: &Arc<Self>, fresh: bool) {
        self.state().used = false;
        let stale = (!fresh).then(|| self.clone());
        let (activity, period) = (Arc::downgrade(self), self.period);
        tokio::spawn(async move {
            let mut noted = match stale {
                Some(activity) => activity.touch().await,
                None => true,
            };
            // Ends after a period without a call, or when no handle is left: `doubt` covers the last calls.
            loop {
                let pause = if noted { jittered(period) } else { period / RETRIES };
                tokio::time::sleep(pause).await;
                let Some(activity) = activity.upgrade().filter(|activity| activity.is_due()) else { return };
                noted = activity.touch().await;
            }
        });
    }

    /// Writes the record. Returns whether that succeeded.
    async fn touch(&self) -> bool {
        let touched = self.backend.record_activity(&self.id, &self.uid).await;
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

/// Observes calls, and starts the task of the activity if it does not run.
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

/// Shortens the period by up to a tenth, so that many sandboxes do not write at the same time.
fn jittered(period: Duration) -> Duration {
    period.mul_f64(1.0 - fastrand::f64() / 10.0)
}
