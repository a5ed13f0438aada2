//! Tests of the guest as its clients use it: calls over a stream in this process, and the programs themselves.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod confined;
mod execute;
mod files;
mod flood;
mod harness;
mod hostile_processes;
mod input;
mod network;
mod policy;
mod probes;
mod process_helpers;
mod programs;
mod rebinding;
mod session;
mod shell;
mod started;
mod stock_legacy;
mod stock_sandboxd;
mod stock_server;
mod terminal;
mod transport;
mod watchdog;
