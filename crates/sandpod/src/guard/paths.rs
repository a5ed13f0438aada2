//! Paths as callers name them, and where they are in the sandbox.
//!
//! What is said here of a path is said by its text, for a clear answer before anything is sent. What holds is the guest's: it
//! is sent the same rules as bounds and asks its kernel where the path leads.

use serde::{Deserialize, Serialize};

/// What becomes of `..` in a path below a root.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Traversal {
    /// It leads where it leads, but not out of the root.
    #[default]
    Resolve,
    /// It is refused, and so is a `~` at the beginning.
    Refuse,
}

/// A directory that callers see as `/`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Root {
    dir: String,
    show_real: bool,
    accept_real: bool,
    traversal: Traversal,
}

impl Root {
    pub(crate) fn new(dir: &str, show_real: bool, accept_real: bool, traversal: Traversal) -> Self {
        Self { dir: normalised(dir), show_real, accept_real, traversal }
    }

    /// The directory of a root within this one. A `dir` that is not below this root by its path in the sandbox is a path
    /// as callers see it, so the result is never outside.
    pub(crate) fn inner(&self, dir: &str) -> String {
        let dir = normalised(dir);
        if is_below(&dir, &self.dir) { dir } else { normalised(&format!("{}{dir}", self.dir)) }
    }

    /// Why a public path or pattern is refused by its text, if it is.
    pub(crate) fn refusal(&self, path: &str) -> Option<String> {
        let has_parent = path.split('/').any(|part| part == "..");
        let is_refused = self.traversal == Traversal::Refuse && (has_parent || path.starts_with('~'));
        is_refused.then(|| format!("Path traversal not allowed: '{path}'"))
    }

    /// Where a public path is, or why it is nowhere below the root.
    pub(crate) fn real(&self, path: &str) -> Result<String, String> {
        let real = if self.accept_real && is_below(&normalised(path), &self.dir) {
            path.to_owned()
        } else {
            format!("{}/{}", self.dir.trim_end_matches('/'), path.trim_start_matches('/'))
        };
        if is_below(&normalised(&real), &self.dir) {
            return Ok(real);
        }
        Err(format!("Path '{path}' escapes root_dir '{}'", self.dir))
    }

    /// What a path of the sandbox is called outside; one that is not below the root is left as it is.
    pub(crate) fn public(&self, real: String) -> String {
        if self.show_real || !is_below(&real, &self.dir) {
            return real;
        }
        let below = &real[self.dir.trim_end_matches('/').len()..];
        format!("/{}", below.trim_start_matches('/'))
    }
}

/// A path without `.`, `..` and doubled slashes, by its text; what leads above `/` stays there.
pub(crate) fn normalised(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Whether a normalised path is `dir` or below it.
pub(crate) fn is_below(path: &str, dir: &str) -> bool {
    let dir = dir.trim_end_matches('/');
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// What two lists of directories have in common.
pub(crate) fn intersection(one: &[String], other: &[String]) -> Vec<String> {
    let mut common = Vec::new();
    for (one, other) in one.iter().flat_map(|one| other.iter().map(move |other| (one, other))) {
        if is_below(one, other) {
            common.push(one.clone());
        } else if is_below(other, one) {
            common.push(other.clone());
        }
    }
    common.sort_unstable();
    common.dedup();
    common
}

#[cfg(test)]
mod tests {
    use super::*;

    fn app() -> Root {
        Root::new("/app", false, false, Traversal::Resolve)
    }

    /// Row G5.
    #[test]
    fn g5_a_public_path_is_below_the_root_and_comes_back_as_it_was() {
        for (public, real) in [
            ("/file.txt", "/app/file.txt"),
            ("file.txt", "/app/file.txt"),
            ("/", "/app/"),
            ("/a/../b", "/app/a/../b"),
        ] {
            assert_eq!(app().real(public).as_deref(), Ok(real));
        }
        assert_eq!(app().public("/app/file.txt".to_owned()), "/file.txt");
        assert_eq!(app().public("/app".to_owned()), "/");
        assert_eq!(app().public("/appfoo".to_owned()), "/appfoo", "that is another directory");
        assert_eq!(app().real("/app/x").as_deref(), Ok("/app/app/x"));
    }

    #[test]
    fn g5_what_leads_out_of_the_root_is_refused_by_name() {
        for path in ["..", "../etc/passwd", "/../etc", "/a/../../etc", "../appfoo"] {
            assert_eq!(app().real(path), Err(format!("Path '{path}' escapes root_dir '/app'")));
        }
    }

    /// Row G2.
    #[test]
    fn g2_a_virtual_path_has_no_parents_and_no_home_and_may_be_real_already() {
        let root = Root::new("/tmp", true, true, Traversal::Refuse);
        assert_eq!(root.real("/src/main.py").as_deref(), Ok("/tmp/src/main.py"));
        assert_eq!(root.real("/tmp/src/main.py").as_deref(), Ok("/tmp/src/main.py"));
        assert_eq!(root.real("/tmpfoo").as_deref(), Ok("/tmp/tmpfoo"));
        assert_eq!(root.public("/tmp/x".to_owned()), "/tmp/x");
        for path in ["..", "/a/../b", "~", "~/x"] {
            assert_eq!(root.refusal(path), Some(format!("Path traversal not allowed: '{path}'")));
        }
        assert_eq!(
            (root.refusal("/a..b"), root.refusal("/...")),
            (None, None),
            "two dots in a name are no parent"
        );
    }

    #[test]
    fn whatever_a_path_says_it_stays_below_its_root_or_is_refused() {
        let parts = ["..", ".", "", "a", "app", "appfoo", "~", "...", "é"];
        for seed in 0..5000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let path: Vec<_> = (0..random.usize(0..8)).map(|_| parts[random.usize(..parts.len())]).collect();
            let path = path.join("/");
            if let Ok(real) = app().real(&path) {
                let real = normalised(&real);
                assert!(is_below(&real, "/app"), "{path} is {real}");
                assert_eq!(app().real(&app().public(real.clone())).map(|again| normalised(&again)), Ok(real));
            }
        }
    }

    #[test]
    fn an_inner_root_is_below_the_outer_one_whichever_way_it_is_named() {
        for (named, real) in [
            ("/src", "/app/src"),
            ("/app/src/", "/app/src"),
            ("/app", "/app"),
            ("/", "/app"),
            ("/appfoo", "/app/appfoo"),
            ("/app/../etc", "/app/etc"),
            ("/../..", "/app"),
        ] {
            assert_eq!(app().inner(named), real, "{named}");
        }
        let whole = Root::new("/", false, false, Traversal::Resolve);
        assert_eq!((whole.inner("/app"), whole.inner("/")), ("/app".to_owned(), "/".to_owned()));
    }

    #[test]
    fn the_whole_file_system_can_be_the_root() {
        let root = Root::new("/", false, false, Traversal::Resolve);
        assert_eq!(root.real("/etc/x").as_deref(), Ok("/etc/x"));
        assert_eq!(root.public("/etc/x".to_owned()), "/etc/x");
    }

    #[test]
    fn directories_have_in_common_what_lies_in_both() {
        let list = |dirs: &[&str]| dirs.iter().map(|dir| (*dir).to_owned()).collect::<Vec<_>>();
        assert_eq!(intersection(&list(&["/a", "/b/c"]), &list(&["/a/x", "/b"])), list(&["/a/x", "/b/c"]));
        assert!(intersection(&list(&["/a"]), &list(&["/ab"])).is_empty());
    }
}
