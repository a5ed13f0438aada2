//! A progress line on a terminal.

use std::convert::Infallible;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::output::{Output, cell};
use crate::terminal::columns;
use crate::time::format_duration;

/// The shortest time between two redraws.
const PERIOD: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);
/// The columns of the bar, where there is room.
const WIDTH: usize = 30;
/// A narrower bar is left out.
const MIN_WIDTH: usize = 5;
/// The columns that are kept for the label and the gap after it.
const MIN_LABEL: usize = 10;

/// A line is drawn.
static IS_DRAWN: AtomicBool = AtomicBool::new(false);

/// A line on stderr that is redrawn with the progress and cleared on drop.
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
        Self {
            label: cell(label),
            total,
            shown: output.shows_progress(),
            drawn: None,
            started: Instant::now(),
        }
    }

    /// Redraws the line for `bytes` transferred, at most once per period.
    pub(crate) fn update(&mut self, bytes: u64) {
        if self.shown && self.drawn.is_none_or(|drawn| drawn.elapsed() >= PERIOD) {
            self.drawn = Some(Instant::now());
            draw(&line(&self.label, bytes, self.total, self.started.elapsed(), columns()));
        }
    }

    /// Redraws the line once a second with the elapsed time. Never returns.
    pub(crate) async fn tick(&mut self) -> Infallible {
        loop {
            tokio::time::sleep(SECOND).await;
            if self.shown {
                let line = format!("{}  {}s", self.label, self.started.elapsed().as_secs());
                draw(&shorten(&line, columns().saturating_sub(1)));
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        clear();
    }
}

/// Redraws the line. Write errors are ignored.
fn draw(line: &str) {
    let _ = write!(io::stderr(), "\r\x1b[K{line}");
    IS_DRAWN.store(true, Ordering::Relaxed);
}

/// Clears the line, if one is drawn, before other output.
pub(crate) fn clear() {
    if IS_DRAWN.swap(false, Ordering::Relaxed) {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
}

/// Formats a line shorter than `columns`, because a wrapped line cannot be redrawn.
fn line(label: &str, bytes: u64, total: Option<u64>, elapsed: Duration, columns: usize) -> String {
    let per_second =
        bytes.saturating_mul(1000) / u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = format!("{}/s", format_size(per_second));
    let columns = columns.saturating_sub(1);
    let Some(total) = total.filter(|total| *total > 0) else {
        let numbers = format!("{}  {rate}", format_size(bytes));
        return labelled(label, &numbers, columns);
    };
    let percent = bytes.min(total).saturating_mul(100) / total;
    let left = total.saturating_sub(bytes).checked_div(per_second).map(Duration::from_secs);
    let left = left.map(|left| format!("  ETA {}", format_duration(left))).unwrap_or_default();
    let sizes = format!("  {} of {}", format_size(bytes), format_size(total));
    // The percentage is always shown, then what else fits.
    let mut numbers = format!("{percent:3} %");
    for more in [format!("  {rate}{left}"), sizes] {
        if numbers.width() + more.width() + MIN_LABEL <= columns {
            numbers.push_str(&more);
        }
    }
    let room = columns.saturating_sub(label.width().min(columns / 2) + numbers.width() + "  [] ".len());
    labelled(label, &format!("{}{numbers}", bar(percent, room.min(WIDTH))), columns)
}

/// Puts as much of the label before the numbers as fits.
fn labelled(label: &str, numbers: &str, columns: usize) -> String {
    let room = columns.saturating_sub(numbers.width() + 2).min(columns.max(2 * label.width()) / 2);
    let label = shorten(label, room);
    let line = if room < 2 { numbers.trim_start().to_owned() } else { format!("{label}  {numbers}") };
    if line.width() <= columns { line } else { line.chars().take(columns).collect() }
}

fn bar(percent: u64, width: usize) -> String {
    if width < MIN_WIDTH {
        return String::new();
    }
    let filled = usize::try_from(percent).unwrap_or_default() * width / 100;
    format!("[{}{}] ", "#".repeat(filled), ".".repeat(width - filled))
}

/// Shortens a text to `most` columns by cutting its beginning: the end of a path matters most.
fn shorten(text: &str, most: usize) -> String {
    if text.width() <= most {
        return text.to_owned();
    }
    let mut room = most.saturating_sub(1);
    let fits = |character: &char| {
        let width = character.width().unwrap_or_default();
        let fits = width <= room;
        room = if fits { room - width } else { 0 };
        fits
    };
    let kept: Vec<char> = text.chars().rev().take_while(fits).collect();
    std::iter::once('…').chain(kept.into_iter().rev()).collect()
}

/// Formats a number of bytes with a binary unit.
pub(crate) fn format_size(bytes: u64) -> String {
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
    fn the_bar_shows_the_progress() {
        let half = |columns| line("file", 512 << 10, Some(1 << 20), Duration::from_secs(1), columns);
        let bar = format!("[{}{}]", "#".repeat(15), ".".repeat(15));
        assert_eq!(half(100), format!("file  {bar}  50 %  512.0 KiB/s  ETA 1s  512.0 KiB of 1.0 MiB"));
        assert_eq!(half(70), "file  [######......]  50 %  512.0 KiB/s  ETA 1s  512.0 KiB of 1.0 MiB");
        assert_eq!(half(40), "file   50 %  512.0 KiB/s  ETA 1s");
        assert_eq!(line("tree", 10, None, Duration::from_secs(10), 80), "tree  10 B  1 B/s");
    }

    #[test]
    fn a_line_is_narrower_than_the_terminal() {
        for label in ["x", "/a/long/path/to/something", "/日本/日本/日本/日本/日本"] {
            for columns in 1..120 {
                let shown = line(label, 512 << 10, Some(1 << 20), Duration::from_secs(1), columns);
                assert!(shown.width() < columns.max(2), "{columns}: {shown}");
                assert!(shown.contains("50 %") || columns < 8, "{columns}: {shown}");
            }
        }
        let narrow = line("/a/long/path/to/something", 1, Some(2), Duration::from_secs(1), 40);
        assert!(narrow.contains("something") && narrow.contains("50 %"), "{narrow}");
    }
}
