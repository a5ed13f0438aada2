//! Times as the numbers that most languages use.

use std::time::SystemTime;

/// Returns the seconds since the Unix epoch. An earlier time is 0.
#[must_use]
pub fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
