//! A sandbox over each stock runtime.

#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod dialect;
mod runtime;
mod stock_python;
