//! Client of a guest: every operation of a sandbox, over any byte stream. This crate depends only on the protocol.
//!
//! A [`Dialer`] opens streams to one guest. A [`Connection`] sends the calls of all callers over one stream and bulk transfers
//! over a second one; it reconnects when a stream is lost, and executes each operation once. A [`Sandbox`] has all operations.
//!
//! The guest is not trusted: it can lie or stall, but it cannot crash the client or exhaust its memory.
//!
//! ```no_run
//! # use sandpod_client::{Connection, Dialer, Error, ExecuteOptions, Options, Sandbox};
//! # async fn run(dialer: impl Dialer) -> Result<(), Error> {
//! let sandbox = Sandbox::new(Connection::new(dialer, Options::default()));
//! sandbox.write("/workspace/hello.txt", "hello\n").await?;
//! let executed = sandbox.execute("cat /workspace/hello.txt", ExecuteOptions::default()).await?;
//! assert_eq!(executed.output, "hello\n");
//! # Ok(())
//! # }
//! ```

mod connection;
mod connection_driver;
mod dial;
mod error;
mod escaped;
mod metrics;
mod path_bounds;
mod process_local;
mod sandbox;

pub use bytes::Bytes;
pub use connection::{Connection, Greeting, Observer, Options};
pub use connection_driver::ConnectionDriver;
pub use dial::{ByteStream, DialError, Dialer, NetworkDialer, Token, websocket};
pub use error::{Error, Notice};
pub use escaped::Escaped;
pub use metrics::StreamMetrics;
pub use path_bounds::PathBounds;
pub use process_local::ProcessLocal;
pub use sandbox::{
    AppliedChange, Binding, Bound, BoundFile, Change, Command, Edited, Enforced, Event, ExecuteOptions,
    Executed, Exit, Expected, FileChange, FileInfo, FileKind, Found, GrepMatch, GrepOptions, Grepped,
    Incomplete, Network, Page, Policy, Process, ProcessInfo, ReadOptions, Replacement, Sandbox, StartOptions,
    Stats, TerminalSize, TextPage, TreeLimits, TreeProgress, TreeSummary, Written, copied,
};
pub use sandpod_protocol::errors::{self, CallRow, ErrorCase, ErrorKind, Retry};
pub use sandpod_protocol::{Failure, v1::ErrorCode};
