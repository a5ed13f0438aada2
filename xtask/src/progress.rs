//! What a person sees while a long step runs: what it does, and what it waits for.
#![expect(clippy::disallowed_types, reason = "xtask has no async runtime whose clock it could use")]

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Announces a step.
pub(crate) fn step(text: impl AsRef<str>) {
    eprintln!("==> {}", text.as_ref());
}

/// A running clock, for steps that say how long they took.
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

/// Asks `missing` until it answers that nothing is. What is missing is shown after a few seconds
/// and is the error after `limit`; an error of its own ends the wait at once.
pub(crate) fn wait_for(
    what: &str,
    limit: Duration,
    mut missing: impl FnMut() -> Result<Option<String>>,
) -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(5);
    let begin = Instant::now();
    let mut announced = false;
    loop {
        let Some(missing) = missing()? else { return Ok(()) };
        let waited = begin.elapsed();
        if waited > limit {
            bail!("{what} did not come up within {}s: {missing}", limit.as_secs());
        }
        if waited > PATIENCE && !announced {
            step(format!("waiting for {what}: {missing}"));
            announced = true;
        }
        sleep(Duration::from_millis(50));
    }
}
