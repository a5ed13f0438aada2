//! The native half of the npm package: it converts values and contains no rules of its own.
//!
//! A `Provider` creates and finds sandboxes, and a `Sandbox` runs operations in one. Asynchronous calls return a
//! promise and take a number from `beginCall`, with which `cancelCall` cancels them. All threads of the process share
//! one runtime.
#![allow(
    clippy::needless_pass_by_value,
    clippy::needless_lifetimes,
    reason = "napi hands values over and needs names of lifetimes"
)]
#![cfg_attr(test, allow(dead_code, reason = "napi-derive registers nothing in tests"))]
#![allow(unreachable_pub, reason = "napi-derive exports public items")]

mod bridge;
mod errors;
mod guard;
mod info;
mod logs;
mod media_types;
mod options;
mod process;
mod provider;
mod results;
mod sandbox;
mod threads;
mod tree;
