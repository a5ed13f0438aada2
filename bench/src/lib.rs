//! Helpers that take and print the measurements of sandpod.

pub mod measure;
pub mod peer;
#[cfg(feature = "spine")]
pub mod pods;
pub mod report;
