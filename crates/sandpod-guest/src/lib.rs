//! The daemon in a sandbox. It runs commands and does every file operation and search itself, so
//! that an image needs neither Python nor GNU tools nor, for file work, a shell. It knows the
//! protocol and the kernel; it has no TLS, no C and no Kubernetes in it.
//!
//! A [`Guest`] answers calls on any byte stream ([`Guest::serve_stream`]). As the first process of a
//! container it is run by [`serve::run`], and [`pipe::join`] joins a process that the container runtime
//! started there with it. Only where it is asked to it listens on the network, too: [`Doors`].

mod accepting;
mod activity;
mod bare;
mod cgroup;
mod confine;
mod descriptors;
mod files;
mod guest;
pub mod local;
mod network;
mod open_files;
mod orders;
pub mod pipe;
mod policy;
mod process;
mod reaper;
mod saved;
mod search;
mod seccomp;
pub mod seed;
pub mod serve;
mod session;
mod stock;
mod transport;
mod watchdog;
mod without;

pub use guest::{Guest, Options};
pub use network::{Doors, Opened};
pub use stock::{Addresses, Stock};
pub use without::Without;

/// What fuzz targets reach of the inside.
#[cfg(fuzzing)]
pub mod fuzzing {
    pub use crate::stock::{serve_grpc, serve_http};
}
