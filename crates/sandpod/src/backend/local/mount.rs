//! Files and directories of this machine that are mounted in a local sandbox.

use std::io;
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
    /// The absolute path on this machine. Symbolic links in it are resolved when a sandbox is created. The user of the
    /// sandbox needs access to it: your user, or `nobody` for a sandbox of root.
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

    /// Returns this mount for a new sandbox, with the path on this machine that has no symbolic links. The guest follows
    /// none, so that a later link cannot lead it to other files.
    pub(super) fn resolved(&self) -> Result<Self> {
        let host = self.host.canonicalize().map_err(|error| {
            let cause = format!("{} can't be mounted ({error})", self.host.display());
            super::cannot_start(&io::Error::other(cause))
        })?;
        let resolved = Self { host, guest: normalized(&self.guest), writable: self.writable };
        resolved.check()?;
        Ok(resolved)
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
    use std::os::unix::fs::symlink;

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
    fn links_in_the_path_on_this_machine_are_resolved() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap().join("real");
        std::fs::create_dir(&real).unwrap();
        let link = dir.path().join("link");
        symlink(&real, &link).unwrap();
        let resolved = mount(link.to_str().unwrap(), "//data/./x/").resolved().unwrap();
        assert_eq!(resolved, mount(real.to_str().unwrap(), "/data/x"));
        assert_eq!(resolved.line(), format!("ro\t{}\t/data/x\n", real.display()));
    }

    #[test]
    fn a_link_to_a_path_with_control_characters_or_to_nothing_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (odd, link) = (dir.path().join("a\nrw\t"), dir.path().join("link"));
        symlink(&odd, &link).unwrap();
        let refusal = || mount(link.to_str().unwrap(), "/data").resolved().unwrap_err();
        assert!(refusal().message().contains("can't be mounted (No such file"), "{}", refusal());
        std::fs::create_dir(&odd).unwrap();
        assert!(refusal().message().contains("control characters"), "{}", refusal());
    }

    #[test]
    fn the_line_of_a_mount_has_its_access_and_paths() {
        assert_eq!(mount("/a=b", "/c").line(), "ro\t/a=b\t/c\n");
    }
}
