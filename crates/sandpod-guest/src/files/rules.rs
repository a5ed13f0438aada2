//! What file calls may touch, by the policy that the sandbox is bound to.

use std::path::{Path, PathBuf};

use sandpod_protocol::v1::Policy;

/// Roots by their real locations, as Bind found them: what a command puts in their place later widens
/// nothing.
#[derive(Debug, Default)]
pub(crate) struct FileRules {
    readable: Vec<PathBuf>,
    writable: Vec<PathBuf>,
    denied: Vec<PathBuf>,
}

/// What is done to a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Access {
    Read,
    Change,
    /// All below it goes with it.
    ChangeWhole,
}

impl FileRules {
    pub(crate) fn new(policy: &Policy) -> Self {
        let root = |root: &String| Path::new(root).components().collect();
        let roots = |roots: &[String]| roots.iter().map(root).collect();
        Self {
            readable: roots(&policy.readable),
            writable: roots(&policy.writable),
            denied: roots(&policy.denied),
        }
    }

    /// Whether everything is allowed, so that nobody has to ask where a file really is.
    pub(crate) fn are_none(&self) -> bool {
        self.readable.is_empty() && self.writable.is_empty() && self.denied.is_empty()
    }

    /// Whether this may be done to what is really there.
    pub(crate) fn allow(&self, real: &Path, access: Access) -> bool {
        let within = |roots: &[PathBuf]| roots.iter().any(|root| real.starts_with(root));
        let unrestricted = match access {
            Access::Read => self.readable.is_empty(),
            Access::Change | Access::ChangeWhole => self.readable.is_empty() && self.writable.is_empty(),
        };
        let in_roots = within(&self.writable) || access == Access::Read && within(&self.readable);
        let takes_denied =
            access == Access::ChangeWhole && self.denied.iter().any(|denied| denied.starts_with(real));
        (unrestricted || in_roots) && !within(&self.denied) && !takes_denied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(readable: &[&str], writable: &[&str], denied: &[&str]) -> FileRules {
        let owned = |roots: &[&str]| roots.iter().map(|root| (*root).to_owned()).collect();
        let policy = Policy {
            readable: owned(readable),
            writable: owned(writable),
            denied: owned(denied),
            ..Policy::default()
        };
        FileRules::new(&policy)
    }

    #[test]
    fn without_roots_everything_is_allowed() {
        let rules = rules(&[], &[], &[]);
        assert!(rules.are_none());
        assert!(rules.allow(Path::new("/any"), Access::ChangeWhole));
    }

    #[test]
    fn reading_needs_a_readable_or_writable_root_and_changing_a_writable_one() {
        let rules = rules(&["/r"], &["/w/"], &[]);
        let allow = |path, access| rules.allow(Path::new(path), access);
        assert!(allow("/r/x", Access::Read) && allow("/r", Access::Read) && allow("/w/x", Access::Read));
        assert!(allow("/w/x", Access::Change) && !allow("/r/x", Access::Change));
        assert!(!allow("/rx", Access::Read) && !allow("/", Access::Read));
    }

    #[test]
    fn writable_roots_alone_leave_everything_readable_and_readable_ones_nothing_writable() {
        assert!(rules(&[], &["/w"], &[]).allow(Path::new("/etc"), Access::Read));
        assert!(!rules(&[], &["/w"], &[]).allow(Path::new("/etc"), Access::Change));
        assert!(!rules(&["/r"], &[], &[]).allow(Path::new("/r/x"), Access::Change));
    }

    #[test]
    fn what_is_denied_is_so_below_any_root_and_does_not_go_with_what_is_above_it() {
        let rules = rules(&[], &["/w"], &["/w/secret"]);
        for access in [Access::Read, Access::Change] {
            assert!(!rules.allow(Path::new("/w/secret/key"), access));
        }
        assert!(rules.allow(Path::new("/w"), Access::Change));
        assert!(!rules.allow(Path::new("/w"), Access::ChangeWhole));
        assert!(rules.allow(Path::new("/w/other"), Access::ChangeWhole));
    }
}
