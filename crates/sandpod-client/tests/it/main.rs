//! The client against a guest that can be made to fail in every way.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod deadline;
mod fake;
mod hostile;
mod loss;
mod network;
mod process;
mod real;
mod rebinding;
mod sharing;
mod transfer;
mod tree;
