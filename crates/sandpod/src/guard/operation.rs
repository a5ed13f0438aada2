//! What can be done with sandboxes and in them, by name.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One thing that is done with a sandbox or in it: what policies bind, audits tell and metrics count.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Operation {
    /// A sandbox is asked for, and found or made.
    Create,
    /// A sandbox is found again.
    Reconnect,
    /// A sandbox is deleted.
    Remove,
    /// A sandbox is given more time.
    Extend,
    /// A sandbox's place is ended, and its volumes are kept.
    Suspend,
    /// A suspended sandbox is given a place again.
    Resume,
    /// A command is run to its end.
    Execute,
    /// A command is started.
    Start,
    /// A started command gets input, another size or a signal.
    Control,
    /// A look at a path.
    Stat,
    /// The entries of a directory.
    List,
    /// A file is read.
    Read,
    /// A file is created or replaced.
    Write,
    /// Text in a file is replaced.
    Edit,
    /// Many files are changed, all or none.
    ApplyEdits,
    /// A path is renamed.
    Move,
    /// A path is removed.
    Delete,
    /// A file of any size is sent.
    Upload,
    /// A file of any size is fetched.
    Download,
    /// A directory is sent with all in it.
    UploadTree,
    /// A directory is fetched with all in it.
    DownloadTree,
    /// Files are looked for by name.
    Glob,
    /// Files are looked for by what is in them.
    Grep,
    /// A new sandbox is made ready by its script.
    SetUp,
    /// What a sandbox uses is asked for.
    Stats,
    /// The started commands are listed.
    Processes,
    /// What is known of a sandbox is asked for.
    Info,
    /// A page of sandboxes is listed.
    ListSandboxes,
    /// All sandboxes are counted.
    CountSandboxes,
    /// How a warm pool is filled is asked for.
    PoolStatus,
    /// Sandboxes whose time is up are looked for and deleted, each of which is told too.
    Cleanup,
    /// What sandboxes share is removed.
    Clear,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 32] = [
        Self::Create,
        Self::Reconnect,
        Self::Remove,
        Self::Extend,
        Self::Suspend,
        Self::Resume,
        Self::Execute,
        Self::Start,
        Self::Control,
        Self::Stat,
        Self::List,
        Self::Read,
        Self::Write,
        Self::Edit,
        Self::ApplyEdits,
        Self::Move,
        Self::Delete,
        Self::Upload,
        Self::Download,
        Self::UploadTree,
        Self::DownloadTree,
        Self::Glob,
        Self::Grep,
        Self::SetUp,
        Self::Stats,
        Self::Processes,
        Self::Info,
        Self::ListSandboxes,
        Self::CountSandboxes,
        Self::PoolStatus,
        Self::Cleanup,
        Self::Clear,
    ];

    /// Its name, as configurations and audits have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Reconnect => "reconnect",
            Self::Remove => "remove",
            Self::Extend => "extend",
            Self::Suspend => "suspend",
            Self::Resume => "resume",
            Self::Execute => "execute",
            Self::Start => "start",
            Self::Control => "control",
            Self::Stat => "stat",
            Self::List => "list",
            Self::Read => "read",
            Self::Write => "write",
            Self::Edit => "edit",
            Self::ApplyEdits => "apply_edits",
            Self::Move => "move",
            Self::Delete => "delete",
            Self::Upload => "upload",
            Self::Download => "download",
            Self::UploadTree => "upload_tree",
            Self::DownloadTree => "download_tree",
            Self::Glob => "glob",
            Self::Grep => "grep",
            Self::SetUp => "set_up",
            Self::Stats => "stats",
            Self::Processes => "processes",
            Self::Info => "info",
            Self::ListSandboxes => "list_sandboxes",
            Self::CountSandboxes => "count_sandboxes",
            Self::PoolStatus => "pool_status",
            Self::Cleanup => "cleanup",
            Self::Clear => "clear",
        }
    }

    /// It changes files by their paths.
    pub(crate) fn is_change(self) -> bool {
        matches!(
            self,
            Self::Write
                | Self::Edit
                | Self::ApplyEdits
                | Self::Move
                | Self::Delete
                | Self::Upload
                | Self::UploadTree
        )
    }

    /// It runs a command.
    pub(crate) fn is_command(self) -> bool {
        matches!(self, Self::Execute | Self::Start)
    }

    /// What of it a policy refuses, in the words of a sentence.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Self::Edit => "edits",
            change if change.is_change() => "writes",
            _ => "reads",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_own_name_in_every_place() {
        for (index, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, index, "{operation}");
            assert_eq!(serde_json::to_value(operation).unwrap(), operation.as_str());
        }
    }
}
