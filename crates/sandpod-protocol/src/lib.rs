//! The wire protocol of clients and guests: the messages of `proto/`, error codes, and the limits of both ends. This crate
//! has no I/O and depends on no other crate of sandpod.
//!
//! [`v1`] has the messages, generated from `proto/` and checked in, so that a build needs no Protocol Buffers compiler.
//! [`Failure`] is the error of every call, and [`errors`] the table of all error codes. Both ends write through a
//! [`CoalescingStream`]. [`sandboxd`] is the wire of another project, for guests and clients that support it.
//!
//! ```
//! use sandpod_protocol::{Failure, v1::ErrorCode};
//!
//! let status: tonic::Status = Failure::new(ErrorCode::NotFound, "no such file").at("/tmp/x").into();
//! let failure = Failure::from(&status);
//! assert_eq!(failure.code(), ErrorCode::NotFound);
//! assert_eq!(failure.path(), Some("/tmp/x"));
//! ```

mod checksum;
mod coalesce;
pub mod errors;
mod failure;
pub mod limits;

#[expect(
    missing_docs,
    clippy::pedantic,
    reason = "generated; the .proto files hold the docs"
)]
#[rustfmt::skip]
#[path = "generated/sandpod.v1.rs"]
pub mod v1;

#[expect(
    missing_docs,
    clippy::pedantic,
    reason = "generated; the .proto file holds the docs"
)]
#[rustfmt::skip]
#[path = "generated/process.v1.rs"]
pub mod sandboxd;

pub use checksum::Checksum;
pub use coalesce::CoalescingStream;
pub use failure::Failure;

/// The oldest and the newest supported protocol version.
pub const VERSIONS: std::ops::RangeInclusive<u32> = 1..=1;

/// Metadata key of the [`v1::Bounds`] of a file call, and the name of the guest's capability to enforce them.
pub const BOUNDS_METADATA: &str = "sandpod-bounds-bin";
/// Capability of guests that enforce [`v1::Bounds`].
pub const BOUNDS_CAPABILITY: &str = "bounds";

/// The first bytes that a guest sends on a stream. Other output is an error and does not make the client wait.
pub const PREAMBLE: &[u8] = b"sandpod-guest/1\n";
