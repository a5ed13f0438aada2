//! The table of operations: their names, and the kinds of access that policies check.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of access that a policy checks.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Access {
    /// Reads files by path.
    Read,
    /// Changes files by path.
    Write,
    /// Changes text in a file.
    Edit,
    /// Runs a command.
    Command,
    /// Not checked by a policy.
    Other,
}

macro_rules! operations {
    ($( $(#[doc = $doc:literal])+ $operation:ident: $name:literal, $access:ident; )+) => {
        /// An operation on a sandbox or in it. Policies, the audit and metrics use its name.
        #[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum Operation {
            $( $(#[doc = $doc])+ $operation, )+
        }

        impl Operation {
            /// All operations.
            pub const ALL: [Self; [$( $name ),+].len()] = [$( Self::$operation ),+];

            /// Returns its name in configurations, the audit and metrics.
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

// operation: name, kind of access;
operations! {
    /// Finds or creates a sandbox.
    Create: "create", Other;
    /// Finds a sandbox.
    Reconnect: "reconnect", Other;
    /// Deletes a sandbox.
    Remove: "remove", Other;
    /// Extends the time to live of a sandbox.
    Extend: "extend", Other;
    /// Deletes the Pod of a sandbox and keeps its volumes.
    Suspend: "suspend", Other;
    /// Creates a Pod for a suspended sandbox.
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
    /// Uploads a file of any size.
    Upload: "upload", Write;
    /// Downloads a file of any size.
    Download: "download", Read;
    /// Uploads a directory.
    UploadTree: "upload_tree", Write;
    /// Downloads a directory.
    DownloadTree: "download_tree", Read;
    /// Finds files by name.
    Glob: "glob", Read;
    /// Finds lines by their text.
    Grep: "grep", Read;
    /// Runs the setup script of a new sandbox.
    SetUp: "set_up", Other;
    /// Reads the resource usage of a sandbox.
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
    /// Returns whether it changes files by path.
    pub(crate) fn is_change(self) -> bool {
        matches!(self.access(), Access::Write | Access::Edit)
    }

    /// Returns whether it runs a command.
    pub(crate) fn is_command(self) -> bool {
        self.access() == Access::Command
    }

    /// Returns the noun for denials in error messages.
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
    fn operation_names_are_equal_in_audit_and_metrics() {
        for (index, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, index, "{operation}");
            assert_eq!(serde_json::to_value(operation).unwrap(), operation.as_str());
        }
    }
}
