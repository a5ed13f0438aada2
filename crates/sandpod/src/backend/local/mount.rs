//! Files and directories of this machine that are mounted in a local sandbox.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::config::{STATE_DIR, overlap, refused};

/// Directories of a sandbox that a mount may not replace.
const RESERVED: [&str; 4] = ["/proc", "/dev", "/sys", STATE_DIR];

/// A file or directory of this machine that is mounted in a sandbox, with all mounts below it.
///
/// ```
/// use sandpod::{LocalConfig, LocalMount};
///
/// let mount = LocalMount { host: "/srv/data".into(), guest: "/data".into(), writable: false };
/// let config = LocalConfig { mounts: vec![mount], ..LocalConfig::default() };
/// # assert!(config.check().is_ok());
/// ```
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct LocalMount {
    /// The absolute path on this machine. The user of the sandbox needs access to it: your user, or `nobody` for a
    /// sandbox of root.
    pub host: PathBuf,
    /// The absolute path in the sandbox.
    pub guest: PathBuf,
    /// Whether commands may change it.
    pub writable: bool,
}

impl LocalMount {
    pub(super) fn check(&self) -> Result<()> {
        let is_plain = |path: &Path| {
            path.to_str().is_some_and(|text| text.starts_with('/') && !text.contains(['\t', '\n', '\0']))
                && !path.components().any(|part| part == Component::ParentDir)
        };
        if !is_plain(&self.host) || !is_plain(&self.guest) {
            let paths = format!("{} at {}", self.host.display(), self.guest.display());
            return Err(refused(
                &format!(
                    "the mount of {paths} has a path that is not absolute, or has '..' or control characters"
                ),
                "Write absolute paths.",
            ));
        }
        let guest = normalized(&self.guest);
        let text = guest.to_string_lossy();
        if text == "/" || RESERVED.iter().any(|dir| overlap(dir, &text)) {
            return Err(refused(
                &format!("nothing can be mounted at {text}"),
                "Choose another directory of the sandbox, such as /data.",
            ));
        }
        Ok(())
    }

    /// The line that `local::setup` of `sandpod_guest` parses.
    pub(super) fn line(&self) -> String {
        let access = if self.writable { "rw" } else { "ro" };
        format!("{access}\t{}\t{}\n", self.host.display(), self.guest.display())
    }
}

/// Returns a path without repeated separators and `.` components.
fn normalized(path: &Path) -> PathBuf {
    path.components().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(host: &str, guest: &str) -> LocalMount {
        LocalMount { host: host.into(), guest: guest.into(), writable: false }
    }

    #[test]
    fn a_mount_needs_absolute_paths_outside_of_reserved_directories() {
        assert!(mount("/srv", "/srv").check().is_ok());
        for (host, guest) in [
            ("srv", "/srv"),
            ("/srv", "srv"),
            ("/srv/..", "/srv"),
            ("/srv", "/a\tb"),
            ("/srv", "/"),
            ("/srv", "/proc/x"),
            ("/srv", "/run"),
            ("/srv", "/run/sandpod/x"),
            ("/srv", "//"),
            ("/srv", "/."),
            ("/srv", "//dev"),
            ("/srv", "/./proc"),
            ("/srv", "/run//sandpod/x"),
            ("/srv", "/run/./sandpod"),
            ("/srv", "/data/../dev"),
        ] {
            assert!(mount(host, guest).check().is_err(), "{host} {guest}");
        }
    }

    #[test]
    fn the_line_of_a_mount_has_its_access_and_paths() {
        assert_eq!(mount("/a=b", "/c").line(), "ro\t/a=b\t/c\n");
    }
}
