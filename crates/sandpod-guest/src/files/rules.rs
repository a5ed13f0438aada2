//! Rules for file calls, from the policy that the sandbox is bound to.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandpod_protocol::Failure;
use sandpod_protocol::v1::{Bounds, Policy};

use crate::policy;

/// Roots by their real paths at the time of Bind: replacing one by a link later widens
/// nothing.
#[derive(Debug, Default)]
pub(crate) struct FileRules {
    readable: Vec<PathBuf>,
    writable: Vec<PathBuf>,
    denied: Vec<PathBuf>,
    /// Further rules that must allow the access, too.
    outer: Option<Arc<Self>>,
}

/// Kinds of access.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Access {
    Read,
    Change,
    /// A change of everything below the path.
    ChangeTree,
}

impl FileRules {
    pub(crate) fn new(policy: &Policy) -> Self {
        let root = |root: &String| Path::new(root).components().collect();
        let roots = |roots: &[String]| roots.iter().map(root).collect();
        Self {
            readable: roots(&policy.readable),
            writable: roots(&policy.writable),
            denied: roots(&policy.denied),
            outer: None,
        }
    }

    /// Returns these rules, narrowed by the bounds of one call. Denied paths apply to their names and to the links' current
    /// targets; allowed ones to their names only, so that a link made by a command allows nothing.
    pub(crate) fn within(self: Arc<Self>, bounds: &Bounds) -> Result<Self, Failure> {
        let within = policy::paths("within", &bounds.within)?;
        let mut denied = policy::paths("denied", &bounds.denied)?;
        let real: Vec<_> = denied.iter().map(|path| policy::real_path(path)).collect();
        denied.extend(real);
        Ok(Self { readable: within.clone(), writable: within, denied, outer: Some(self) })
    }

    /// Returns whether everything is allowed, so that real paths need not be determined.
    pub(crate) fn is_unrestricted(&self) -> bool {
        let none = self.readable.is_empty() && self.writable.is_empty() && self.denied.is_empty();
        none && self.outer.as_ref().is_none_or(|outer| outer.is_unrestricted())
    }

    /// Returns whether this access to a real path is allowed.
    pub(crate) fn allow(&self, real: &Path, access: Access) -> bool {
        let within = |roots: &[PathBuf]| roots.iter().any(|root| real.starts_with(root));
        let unrestricted = match access {
            Access::Read => self.readable.is_empty(),
            Access::Change | Access::ChangeTree => self.readable.is_empty() && self.writable.is_empty(),
        };
        let in_roots = within(&self.writable) || access == Access::Read && within(&self.readable);
        let contains_denied =
            access == Access::ChangeTree && self.denied.iter().any(|denied| denied.starts_with(real));
        let allowed = (unrestricted || in_roots) && !within(&self.denied) && !contains_denied;
        allowed && self.outer.as_ref().is_none_or(|outer| outer.allow(real, access))
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
        assert!(rules.is_unrestricted());
        assert!(rules.allow(Path::new("/any"), Access::ChangeTree));
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
    fn writable_roots_do_not_limit_reading_and_readable_ones_forbid_writing() {
        assert!(rules(&[], &["/w"], &[]).allow(Path::new("/etc"), Access::Read));
        assert!(!rules(&[], &["/w"], &[]).allow(Path::new("/etc"), Access::Change));
        assert!(!rules(&["/r"], &[], &[]).allow(Path::new("/r/x"), Access::Change));
    }

    #[test]
    fn denied_paths_are_denied_below_roots_and_protect_their_parents() {
        let rules = rules(&[], &["/w"], &["/w/secret"]);
        for access in [Access::Read, Access::Change] {
            assert!(!rules.allow(Path::new("/w/secret/key"), access));
        }
        assert!(rules.allow(Path::new("/w"), Access::Change));
        assert!(!rules.allow(Path::new("/w"), Access::ChangeTree));
        assert!(rules.allow(Path::new("/w/other"), Access::ChangeTree));
    }

    fn bounded(bound: FileRules, within: &[&str], denied: &[&str]) -> Result<FileRules, Failure> {
        let owned = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect();
        Arc::new(bound).within(&Bounds { within: owned(within), denied: owned(denied) })
    }

    #[test]
    fn the_bounds_of_a_call_only_narrow_the_binding() {
        let rules = bounded(rules(&["/r"], &["/w"], &[]), &["/w/a", "/elsewhere"], &["/w/a/no"]).unwrap();
        assert!(!rules.is_unrestricted());
        assert!(rules.allow(Path::new("/w/a/x"), Access::Change));
        assert!(!rules.allow(Path::new("/w/x"), Access::Change), "bound, but not in the bounds");
        assert!(!rules.allow(Path::new("/elsewhere/x"), Access::Read), "in the bounds, but not bound");
        assert!(!rules.allow(Path::new("/w/a/no/x"), Access::Read));
        assert!(!rules.allow(Path::new("/w/a"), Access::ChangeTree));
        assert!(bounded(FileRules::default(), &[], &[]).unwrap().is_unrestricted());
    }

    #[test]
    fn links_allow_nothing_and_denied_links_deny_both_paths() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap().join("real");
        let link = dir.path().join("link");
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let link = link.to_str().unwrap();
        assert!(!bounded(FileRules::default(), &[link], &[]).unwrap().allow(&real, Access::Read));
        assert!(!bounded(FileRules::default(), &[], &[link]).unwrap().allow(&real, Access::Read));
    }

    #[test]
    fn invalid_bounds_are_refused() {
        assert!(bounded(FileRules::default(), &["relative"], &[]).is_err());
        assert!(bounded(FileRules::default(), &[], &["/a/../b"]).is_err());
    }
}
