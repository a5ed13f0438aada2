//! Transfer of whole directories: entry by entry, each file with its bytes and checksum, and a summary with the number of
//! entries at the end. Only the current part is in memory.

mod reader;
mod upload;
mod writer;

pub(super) use reader::TreeReader;
pub(super) use upload::TreeUploads;
pub(super) use writer::{TreeWriter, make_link, set_mode_and_time};

/// Maximum depth of a tree: a directory is open for each level.
const MAX_DEPTH: usize = 200;

#[cfg(test)]
mod tests;
