//! The daemon in a sandbox. It runs commands and does every file operation and search itself, so
//! that an image needs neither Python nor GNU tools nor, for file work, a shell. It knows the
//! protocol and the kernel; it has no TLS, no C and no Kubernetes in it.
//!
//! A [`Guest`] answers calls on any byte stream ([`Guest::serve_stream`]). As the first process of a
//! container it is run by [`serve::serve`], and [`pipe::join`] joins a process that the container runtime
//! started there with it.

mod activity;
mod files;
mod gather;
mod guest;
pub mod local;
mod orders;
pub mod pipe;
mod process;
mod reaper;
mod search;
pub mod serve;
mod session;
mod transport;

pub use guest::{Guest, Options};
pub use orders::Orders;
