//! Everything that is done to files. `service` is the gRPC side; the rest are plain functions from
//! a request to its response, one file per operation, that block and know nothing of gRPC.
//!
//! A [`Reach`] turns a path into a [`Place`](place::Place): an opened directory and a name in it, allowed
//! by the policy. Whatever replaces a file's content goes through [`Staged`](staged::Staged): new content
//! beside the old that takes its name in one step. `edit` adds the comparison before the swap, `upload` the
//! arrival in parts, `apply` and its `journal` the all or nothing of many files.

mod apply;
mod arrival;
mod at_hand;
mod delete;
mod download;
mod edit;
mod facts;
mod info;
mod journal;
mod moving;
mod notes;
mod paths;
mod place;
mod read;
mod rules;
mod sending;
mod service;
mod staged;
#[cfg(test)]
pub(crate) mod testing;
mod tree;
mod turns;
mod upload;
mod write;

pub(crate) use facts::Facts;
pub(crate) use paths::{absolute, refused};
pub(crate) use place::{Place, Purpose, Reach, facts_at};
pub(crate) use rules::FileRules;
pub(crate) use service::{FileService, blocking};
