//! The daemon in a sandbox. It runs commands and does all file operations and searches itself, so an image
//! needs neither Python nor GNU tools and, for file operations, no shell. The crate depends on the protocol
//! and the kernel; it contains no TLS, no C and no Kubernetes client.
//!
//! A [`Guest`] answers calls on any byte stream ([`Guest::serve_stream`]). [`serve::run`] runs it as the first
//! process of a container, and [`pipe::join`] connects a process that the container runtime started there to it.
//! It listens on the network only if [`ListenOptions`] name an address.

mod accept;
mod activity;
mod cgroup;
mod confine;
mod descriptors;
mod disabled_kernel_features;
mod files;
mod guest;
pub mod image;
pub mod local;
mod network;
mod open_file_limit;
pub mod pipe;
mod policy;
mod process;
mod reaper;
mod search;
mod seccomp;
pub mod serve;
mod session;
mod signals;
mod state_file;
mod stock;
mod syscalls;
mod transport;
mod watchdog;

pub use disabled_kernel_features::DisabledKernelFeatures;
pub use guest::{Guest, Options};
pub use network::{ListenAddresses, ListenOptions};
pub use stock::{StockAddresses, StockApis};

/// Internal functions that fuzz targets call.
#[cfg(fuzzing)]
pub mod fuzzing {
    pub use crate::stock::{serve_grpc, serve_http};
}
