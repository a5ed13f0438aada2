//! Finding files by name and by content. [`Pattern`](sandpod_text::Pattern) says which paths are meant,
//! for both; `walk` goes through a tree within its budget.

mod glob;
mod grep;
mod walk;

pub(crate) use glob::glob;
pub(crate) use grep::grep;
