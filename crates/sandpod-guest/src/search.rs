//! Searches for files by name and by content. Both match paths with [`Pattern`](sandpod_text::Pattern); `walk` visits a
//! tree within a time limit.

mod glob;
mod grep;
mod walk;

pub(crate) use glob::glob;
pub(crate) use grep::grep;
