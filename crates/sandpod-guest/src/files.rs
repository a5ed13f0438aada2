//! Everything that is done to files. `service` is the gRPC side; the rest are plain functions from
//! a request to its response, one file per operation, that block and know nothing of gRPC.
//!
//! Whatever replaces a file's content goes through [`write::Staged`]: a new file beside the old one
//! that takes its name in one step. `edit` adds the comparison before the swap, `upload` the arrival
//! in parts.

mod delete;
mod download;
mod edit;
mod info;
mod lines;
mod paths;
mod read;
mod service;
#[cfg(test)]
pub(crate) mod testing;
mod turns;
mod upload;
mod write;

pub(crate) use info::file_info;
pub(crate) use lines::fitting;
pub(crate) use paths::{absolute, open_file, refused};
pub(crate) use service::{FileService, blocking};
