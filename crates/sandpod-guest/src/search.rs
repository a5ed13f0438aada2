//! Finding files by name and by content. [`Pattern`](pattern::Pattern) says which paths are meant,
//! for both; `walk` goes through a tree within its budget.

mod braces;
mod glob;
mod grep;
mod pattern;
mod walk;

pub(crate) use glob::glob;
pub(crate) use grep::grep;
