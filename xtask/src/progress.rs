//! Progress messages of long steps, and waits with a limit.
#![expect(clippy::disallowed_types, reason = "xtask has no async runtime whose clock it could use")]

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Prints the start of a step.
pub(crate) fn step(text: impl AsRef<str>) {
    eprintln!("==> {}", text.as_ref());
}

/// A running clock, for the times that are printed.
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

/// Calls `missing` until it returns `None`. Its text is printed after a few seconds, and is the error after `limit`.
///
/// An error of `missing` ends the wait at once.
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
