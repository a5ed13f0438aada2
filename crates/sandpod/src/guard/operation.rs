//! The table of operations: their names, and what policies, the audit and the metrics make of them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a policy can bind of an operation.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Access {
    /// It reads files by their paths.
    Read,
    /// It changes files by their paths.
    Write,
    /// It changes text in a file.
    Edit,
    /// It runs a command.
    Command,
    /// Nothing.
    Other,
}

macro_rules! operations {
    ($( $(#[doc = $doc:literal])+ $operation:ident: $name:literal, $access:ident; )+) => {
        /// An operation on a sandbox or in it, which policies bind, the audit records and metrics count.
        #[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum Operation {
            $( $(#[doc = $doc])+ $operation, )+
        }

        impl Operation {
            /// All operations.
            pub const ALL: [Self; [$( $name ),+].len()] = [$( Self::$operation ),+];

            /// Its name in configurations, the audit and metrics.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $( Self::$operation => $name, )+ }
            }

            fn access(self) -> Access {
                match self { $( Self::$operation => Access::$access, )+ }
            }
        }
    };
}

// operation: name, what a policy can bind of it;
operations! {
    /// Finds or creates a sandbox.
    Create: "create", Other;
    /// Finds a sandbox.
    Reconnect: "reconnect", Other;
    /// Deletes a sandbox.
    Remove: "remove", Other;
    /// Gives a sandbox more time.
    Extend: "extend", Other;
    /// Deletes the Pod of a sandbox and keeps its volumes.
    Suspend: "suspend", Other;
    /// Gives a suspended sandbox a Pod.
    Resume: "resume", Other;
    /// Runs a command to its end.
    Execute: "execute", Command;
    /// Starts a command.
    Start: "start", Command;
    /// Sends input, a terminal size or a signal to a started command.
    Control: "control", Other;
    /// Reads the properties of a path.
    Stat: "stat", Read;
    /// Lists a directory.
    List: "list", Read;
    /// Reads a file.
    Read: "read", Read;
    /// Creates or replaces a file.
    Write: "write", Write;
    /// Replaces text in a file.
    Edit: "edit", Edit;
    /// Changes several files, all or none.
    ApplyEdits: "apply_edits", Write;
    /// Renames a path.
    Move: "move", Write;
    /// Removes a path.
    Delete: "delete", Write;
    /// Sends a file of any size.
    Upload: "upload", Write;
    /// Fetches a file of any size.
    Download: "download", Read;
    /// Sends a directory.
    UploadTree: "upload_tree", Write;
    /// Fetches a directory.
    DownloadTree: "download_tree", Read;
    /// Finds files by name.
    Glob: "glob", Read;
    /// Finds lines by their text.
    Grep: "grep", Read;
    /// Runs the setup script of a new sandbox.
    SetUp: "set_up", Other;
    /// Reads what a sandbox uses.
    Stats: "stats", Other;
    /// Lists the started commands.
    Processes: "processes", Other;
    /// Reads the properties of a sandbox.
    Info: "info", Other;
    /// Lists a page of sandboxes.
    ListSandboxes: "list_sandboxes", Other;
    /// Counts the sandboxes.
    CountSandboxes: "count_sandboxes", Other;
    /// Reads how many Pods a warm pool has ready.
    PoolStatus: "pool_status", Other;
    /// Deletes expired sandboxes; each deletion is an operation of its own.
    Cleanup: "cleanup", Other;
    /// Removes the objects that sandboxes share.
    Clear: "clear", Other;
}

impl Operation {
    /// Whether it changes files by their paths.
    pub(crate) fn is_change(self) -> bool {
        matches!(self.access(), Access::Write | Access::Edit)
    }

    /// Whether it runs a command.
    pub(crate) fn is_command(self) -> bool {
        self.access() == Access::Command
    }

    /// The noun for what a policy denies.
    pub(crate) fn noun(self) -> &'static str {
        match self.access() {
            Access::Edit => "edits",
            Access::Write => "writes",
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
    fn each_operation_has_the_same_name_in_the_audit_and_in_metrics() {
        for (index, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, index, "{operation}");
            assert_eq!(serde_json::to_value(operation).unwrap(), operation.as_str());
        }
    }
}
