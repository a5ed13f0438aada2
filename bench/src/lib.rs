//! Measurements of sandpod: how they are taken, and how they are shown.

pub mod measure;
pub mod peer;
#[cfg(feature = "spine")]
pub mod pods;
pub mod report;
