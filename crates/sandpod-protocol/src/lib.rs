//! What a client and a guest say to each other: the messages of `proto/`, why a call can fail, and
//! the limits that both keep to. It knows nothing: neither where a stream comes from nor what is
//! done with a message.
//!
//! The messages are in [`v1`], generated from `proto/` and checked in, so that nobody who builds
//! sandpod needs a Protocol Buffers compiler. [`Failure`] is the one way in which a guest says no.
//! [`CoalescingStream`] is how both ends write. [`sandboxd`] is another project's wire, for guests and clients that meet it.
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

/// The protocol versions that this crate speaks, oldest and newest.
pub const VERSIONS: std::ops::RangeInclusive<u32> = 1..=1;

/// The metadata of a file call that holds its [`v1::Bounds`], and the capability of guests that heed them.
pub const BOUNDS_METADATA: &str = "sandpod-bounds-bin";
/// See [`BOUNDS_METADATA`].
pub const BOUNDS_CAPABILITY: &str = "bounds";

/// What a guest's end of a stream says before anything else, so that noise on the stream is an
/// error and not a hang.
pub const PREAMBLE: &[u8] = b"sandpod-guest/1\n";
