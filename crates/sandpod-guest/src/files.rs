//! File operations. `service` is the gRPC side; the rest are plain, blocking functions from a request to its response, one
//! file per operation, without gRPC.
//!
//! A [`PathResolver`] turns a path into a [`Location`](resolver::Location): an opened directory and a name in it that the
//! policy allows. All new file content goes through [`Staged`](staged::Staged), which writes it beside the old
//! content and then takes its name atomically. `edit` adds the comparison before the swap, `upload` the transfer in
//! parts, `apply` and its `journal` the atomicity of changes to many files.

mod apply;
mod cached_lookup;
mod chunked_calls;
mod delete;
mod download;
mod edit;
mod file_chunks;
mod file_locks;
mod file_stat;
mod info;
mod journal;
mod paths;
mod read;
mod rename;
mod resolver;
mod rules;
mod service;
mod staged;
mod temp_journal;
#[cfg(test)]
pub(crate) mod testing;
mod tree;
mod upload;
mod write;

pub(crate) use file_stat::FileStat;
pub(crate) use paths::{absolute, refused};
pub(crate) use resolver::{Location, PathResolver, Purpose, stat_at};
pub(crate) use rules::FileRules;
pub(crate) use service::{FileService, blocking};
