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
pub use tree::{TreeLimits, TreeProgress, TreeSummary};

use crate::connection::Connection;
use crate::error::{Error, Notice};
use crate::path_bounds::{EncodedPathBounds, PathBounds};

/// A sandbox: commands, files, searches, transfers. Clones are the same sandbox, and every future
/// may be dropped at any time.
#[derive(Clone, Debug)]
pub struct Sandbox {
    connection: Connection,
    bounds: Option<EncodedPathBounds>,
}

impl Sandbox {
    /// The sandbox at the other end of a connection.
    #[must_use]
    pub fn new(connection: Connection) -> Self {
        Self { connection, bounds: None }
    }

    /// The same sandbox for file calls and searches that lead nowhere else than `bounds` allow. They are in the place of
    /// those that it had; what the sandbox is bound to holds besides.
    ///
    /// The sandbox's kernel says where a path leads, so links and `..` get nobody around it.
    pub fn within(&self, bounds: PathBounds) -> Result<Self, Error> {
        Ok(Self { connection: self.connection.clone(), bounds: EncodedPathBounds::new(bounds)? })
    }

    /// The way to the sandbox.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// What happened since this was asked last; `execute` asks for its own result.
    #[must_use]
    pub fn take_notices(&self) -> Vec<Notice> {
        self.connection.take_notices()
    }
}
