//! The client against a fake guest with scripted faults, and against the real guest.

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
