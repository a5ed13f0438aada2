//! How far something is, on a terminal that somebody watches.

use std::convert::Infallible;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::output::{Output, cell};
use crate::terminal::columns;

/// How often it is drawn.
const PERIOD: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);
/// Of the bar, where there is room for it.
const WIDTH: usize = 30;
/// A bar that is shorter says nothing.
const LEAST_WIDTH: usize = 5;

/// There is a line.
static IS_DRAWN: AtomicBool = AtomicBool::new(false);

/// A line that is drawn anew as something goes on, and is gone when it ends.
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

    /// So many bytes are done.
    pub(crate) fn at(&mut self, bytes: u64) {
        if self.shown && self.drawn.is_none_or(|drawn| drawn.elapsed() >= PERIOD) {
            self.drawn = Some(Instant::now());
            draw(&line(&self.label, bytes, self.total, self.started.elapsed(), columns()));
        }
    }

    /// Says once a second for how long it goes on already.
    pub(crate) async fn tick(&mut self) -> Infallible {
        loop {
            tokio::time::sleep(SECOND).await;
            if self.shown {
                let line = format!("{}  {}s", self.label, self.started.elapsed().as_secs());
                draw(&end(&line, columns().saturating_sub(1)));
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        clear();
    }
}

/// Draws the line anew. Only for the eye.
fn draw(line: &str) {
    let _ = write!(io::stderr(), "\r\x1b[K{line}");
    IS_DRAWN.store(true, Ordering::Relaxed);
}

/// Takes the line away, if there is one, for something else to be said.
pub(crate) fn clear() {
    if IS_DRAWN.swap(false, Ordering::Relaxed) {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
}

/// A line that is shorter than `columns`: one that wraps could not be drawn anew.
fn line(label: &str, bytes: u64, total: Option<u64>, elapsed: Duration, columns: usize) -> String {
    let per_second =
        bytes.saturating_mul(1000) / u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = format!("{}/s", size(per_second));
    let label = end(label, columns / 2);
    let line = match total.filter(|total| *total > 0) {
        None => format!("{label}  {}  {rate}", size(bytes)),
        Some(total) => {
            let percent = bytes.min(total).saturating_mul(100) / total;
            let numbers = format!("{percent:3} %  {} of {}  {rate}", size(bytes), size(total));
            let room = columns.saturating_sub(label.width() + numbers.width() + "  [] ".len() + 1);
            format!("{label}  {}{numbers}", bar(percent, room.min(WIDTH)))
        }
    };
    end(&line, columns.saturating_sub(1))
}

fn bar(percent: u64, width: usize) -> String {
    if width < LEAST_WIDTH {
        return String::new();
    }
    let filled = usize::try_from(percent).unwrap_or_default() * width / 100;
    format!("[{}{}] ", "#".repeat(filled), ".".repeat(width - filled))
}

/// The end of a text, which says most of a path, in no more than `most` columns.
fn end(text: &str, most: usize) -> String {
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
        let half = |columns| line("file", 512 << 10, Some(1 << 20), Duration::from_secs(1), columns);
        let bar = format!("[{}{}]", "#".repeat(15), ".".repeat(15));
        assert_eq!(half(100), format!("file  {bar}  50 %  512.0 KiB of 1.0 MiB  512.0 KiB/s"));
        assert_eq!(half(60), "file  [#####.....]  50 %  512.0 KiB of 1.0 MiB  512.0 KiB/s");
        assert_eq!(line("tree", 10, None, Duration::from_secs(10), 80), "tree  10 B  1 B/s");
    }

    #[test]
    fn a_line_is_never_as_wide_as_the_terminal() {
        for label in ["x", "/a/long/path/to/something", "/日本/日本/日本/日本/日本"] {
            for columns in 1..120 {
                let shown = line(label, 512 << 10, Some(1 << 20), Duration::from_secs(1), columns);
                assert!(shown.width() < columns.max(2), "{columns}: {shown}");
            }
        }
        let narrow = line("/a/long/path/to/something", 1, Some(2), Duration::from_secs(1), 40);
        assert!(narrow.contains("something") && narrow.contains("50 %"), "{narrow}");
    }
}
