//! How far a transfer is, on a terminal that somebody watches.

use std::io::{self, Write as _};
use std::time::Duration;

use tokio::time::Instant;

use crate::output::Output;

/// How often it is drawn.
const PERIOD: Duration = Duration::from_millis(100);
/// Of the bar.
const WIDTH: usize = 30;

/// A line that is drawn anew as a transfer goes on, and is gone when it ends.
pub(crate) struct Progress {
    label: String,
    total: Option<u64>,
    shown: bool,
    drawn: Option<Instant>,
    started: Instant,
}

impl Progress {
    /// `total` is known for single files only.
    pub(crate) fn new(output: &Output, label: &str, total: Option<u64>) -> Self {
        let label = sandpod::Shown(label).to_string();
        Self { label, total, shown: output.shows_progress(), drawn: None, started: Instant::now() }
    }

    /// So many bytes are done.
    pub(crate) fn at(&mut self, bytes: u64) {
        if self.shown && self.drawn.is_none_or(|drawn| drawn.elapsed() >= PERIOD) {
            self.drawn = Some(Instant::now());
            let line = line(&self.label, bytes, self.total, self.started.elapsed());
            let _ = write!(io::stderr(), "\r\x1b[K{line}"); // Only for the eye.
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(label: &str, bytes: u64, total: Option<u64>, elapsed: Duration) -> String {
    let per_second =
        bytes.saturating_mul(1000) / u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = format!("{}/s", size(per_second));
    match total.filter(|total| *total > 0) {
        None => format!("{label}  {}  {rate}", size(bytes)),
        Some(total) => {
            let percent = bytes.min(total).saturating_mul(100) / total;
            let filled = usize::try_from(percent).unwrap_or_default() * WIDTH / 100;
            let bar = format!("{}{}", "#".repeat(filled), ".".repeat(WIDTH - filled));
            format!("{label}  [{bar}] {percent:3} %  {} of {}  {rate}", size(bytes), size(total))
        }
    }
}

/// A number of bytes for people.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units.into_iter().find(|(unit, _)| bytes >= *unit);
    unit.map_or_else(
        || format!("{bytes} B"),
        |(unit, name)| format!("{}.{} {name}", bytes / unit, bytes % unit * 10 / unit),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_says_how_far_it_is() {
        let shown = line("file", 512 << 10, Some(1 << 20), Duration::from_secs(1));
        let bar = format!("[{}{}]", "#".repeat(15), ".".repeat(15));
        assert_eq!(shown, format!("file  {bar}  50 %  512.0 KiB of 1.0 MiB  512.0 KiB/s"));
        assert_eq!(line("tree", 10, None, Duration::from_secs(10)), "tree  10 B  1 B/s");
    }
}
