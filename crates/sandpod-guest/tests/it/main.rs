//! A guest as its clients see it: calls over a stream in this process, and the programs themselves.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod execute;
mod files;
mod harness;
mod programs;
mod session;
mod started;
mod transport;
