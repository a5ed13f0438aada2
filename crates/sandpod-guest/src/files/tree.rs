//! Whole directories on their way: entry by entry, each file with its bytes and checksum, and how many
//! of all there were at the end. Nothing is held but the part that is on its way.

mod arriving;
mod reading;
mod writing;

pub(super) use arriving::TreeUploads;
pub(super) use reading::Reading;
pub(super) use writing::{Writing, make_link, settle};

/// A directory below which nothing is sent: there would be a directory open for each level.
const MAX_DEPTH: usize = 200;

#[cfg(test)]
mod tests;
