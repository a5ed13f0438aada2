//! The native half of the npm package: conversion and glue, no rules of its own.
//!
//! A `Provider` makes sandboxes and a `Sandbox` works in them. Each call that waits returns a promise and takes the number
//! of a `beginCall`, by which `cancelCall` ends it. All work is done on one runtime for all threads of the process.
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
