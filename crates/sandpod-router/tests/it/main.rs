//! The router in this process, in front of servers of this process, with an API server of this process.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod access;
mod api;
mod hostile;
mod proxy;
mod stage;
mod tls;
mod wake;
mod watch;
