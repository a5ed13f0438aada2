//! What the calls of a sandbox mean for names and text, whoever answers them: a guest, or a dialect in the place of one.
//!
//! A [`Pattern`] says which paths are meant, [`grep`] what a search shows of their lines, a [page](page::page) is what a
//! reader sees of a file, [`edit`] has the replacements in one, and [`output`] what is kept of a command's. Nothing here
//! opens a file or waits: contents are handed in.

pub mod edit;
pub mod grep;
pub mod output;
pub mod page;
pub mod path;
mod pattern;

pub use pattern::Pattern;

/// The beginning of a text that fits into `room` bytes and ends with a whole character.
///
/// ```
/// assert_eq!(sandpod_text::fitting("naïve", 3), "na");
/// assert_eq!(sandpod_text::fitting("naïve", 4), "naï");
/// ```
#[must_use]
pub fn fitting(text: &str, room: usize) -> &str {
    let mut end = room.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
