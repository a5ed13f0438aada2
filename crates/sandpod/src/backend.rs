//! What makes places for sandboxes and opens streams to them.

pub mod local;
pub(crate) mod raw;
