//! Every operation on a sandbox.

mod binding;
mod command;
mod edits;
mod execute;
mod files;
mod policy;
mod process;
mod search;
mod stats;
mod transfer;
mod tree;

pub use binding::{Binding, Bound, BoundFile};
pub use command::{Command, ExecuteOptions, StartOptions, TerminalSize};
pub use edits::{AppliedChange, Change, Expected, FileChange, Replacement};
pub use execute::Executed;
pub use files::{Edited, FileInfo, FileKind, Page, ReadOptions, TextPage, Written};
pub use policy::{Enforced, Network, Policy};
pub use process::{Event, Exit, Process, ProcessInfo};
pub use search::{Found, GrepMatch, GrepOptions, Grepped, Incomplete};
pub use stats::Stats;
pub use transfer::copied;
pub use tree::{TreeLimits, TreeProgress, TreeSummary};

use crate::connection::Connection;
use crate::error::{Error, Notice};
use crate::path_bounds::{EncodedPathBounds, PathBounds};

/// A sandbox: commands, files, searches, transfers. Clones refer to the same sandbox, and all futures are cancel-safe.
#[derive(Clone, Debug)]
pub struct Sandbox {
    connection: Connection,
    bounds: Option<EncodedPathBounds>,
}

impl Sandbox {
    /// Creates a sandbox over a connection.
    #[must_use]
    pub fn new(connection: Connection) -> Self {
        Self { connection, bounds: None }
    }

    /// Returns the same sandbox with `bounds` for file calls and searches. They replace the bounds of `self`; the policy that the
    /// sandbox is bound to still holds.
    ///
    /// The sandbox's kernel resolves paths, so links and `..` cannot bypass the bounds.
    pub fn within(&self, bounds: PathBounds) -> Result<Self, Error> {
        Ok(Self { connection: self.connection.clone(), bounds: EncodedPathBounds::new(bounds)? })
    }

    /// The connection to the sandbox.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Returns and clears the notices since the last call; `execute` returns its notices in its result.
    #[must_use]
    pub fn take_notices(&self) -> Vec<Notice> {
        self.connection.take_notices()
    }
}
