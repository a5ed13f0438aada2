//! Pure functions on names and text, shared by the guest and the dialects.
//!
//! A [`Pattern`] matches paths, [`grep`] defines the results of text searches, [`page`](page::page) makes pages of files,
//! [`edit`] replaces text, [`output`] truncates the output of commands, and [`nearest`] makes suggestions. Nothing here opens
//! a file or blocks: callers pass the contents.

pub mod edit;
pub mod grep;
pub mod output;
pub mod page;
pub mod path;
mod pattern;
mod suggestion;

pub use pattern::Pattern;
pub use suggestion::nearest;

/// Returns the longest prefix of `text` that fits into `room` bytes without cutting a character.
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
