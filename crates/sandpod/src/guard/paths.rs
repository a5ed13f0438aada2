//! Paths as callers name them, and the real paths in the sandbox.
//!
//! The checks here look only at the text of a path and return a clear error before anything is sent. The guest
//! enforces: it gets the same rules as bounds, and its kernel resolves the path.

use serde::{Deserialize, Serialize};

/// The treatment of `..` in a path below a root.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Traversal {
    /// It is resolved. A path that leads out of the root is an error.
    #[default]
    Resolve,
    /// It is rejected, and so is a leading `~`.
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

    /// Returns the directory of a root within this one. A `dir` that is not below this root is taken as a path that
    /// callers see, so the result is always inside.
    pub(crate) fn inner(&self, dir: &str) -> String {
        let dir = normalised(dir);
        if is_below(&dir, &self.dir) { dir } else { normalised(&format!("{}{dir}", self.dir)) }
    }

    /// Returns why the text of a public path or pattern is rejected, if it is.
    pub(crate) fn refusal(&self, path: &str) -> Option<String> {
        let has_parent = path.split('/').any(|part| part == "..");
        let is_refused = self.traversal == Traversal::Refuse && (has_parent || path.starts_with('~'));
        is_refused.then(|| format!("Path traversal not allowed: '{path}'"))
    }

    /// Returns the real path of a public path, or an error if it is outside the root.
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

    /// Returns the public path of a real path. A path outside the root is returned unchanged.
    pub(crate) fn public(&self, real: String) -> String {
        if self.show_real || !is_below(&real, &self.dir) {
            return real;
        }
        let below = &real[self.dir.trim_end_matches('/').len()..];
        format!("/{}", below.trim_start_matches('/'))
    }
}

/// Removes `.`, `..` and doubled slashes from the text of a path. A `..` at `/` is ignored.
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

/// Returns whether a normalised path is `dir` or below it.
pub(crate) fn is_below(path: &str, dir: &str) -> bool {
    let dir = dir.trim_end_matches('/');
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the intersection of two lists of directories.
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
    fn g5_public_path_maps_below_the_root_and_back() {
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
    fn g5_path_out_of_the_root_is_rejected_with_its_name() {
        for path in ["..", "../etc/passwd", "/../etc", "/a/../../etc", "../appfoo"] {
            assert_eq!(app().real(path), Err(format!("Path '{path}' escapes root_dir '/app'")));
        }
    }

    /// Row G2.
    #[test]
    fn g2_virtual_path_rejects_parent_and_home_and_may_be_real() {
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
            "dots in a name are not a parent directory"
        );
    }

    #[test]
    fn every_path_stays_below_its_root_or_is_rejected() {
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
    fn inner_root_is_always_below_the_outer_root() {
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
    fn whole_file_system_can_be_the_root() {
        let root = Root::new("/", false, false, Traversal::Resolve);
        assert_eq!(root.real("/etc/x").as_deref(), Ok("/etc/x"));
        assert_eq!(root.public("/etc/x".to_owned()), "/etc/x");
    }

    #[test]
    fn intersection_keeps_directories_that_are_in_both_lists() {
        let list = |dirs: &[&str]| dirs.iter().map(|dir| (*dir).to_owned()).collect::<Vec<_>>();
        assert_eq!(intersection(&list(&["/a", "/b/c"]), &list(&["/a/x", "/b"])), list(&["/a/x", "/b/c"]));
        assert!(intersection(&list(&["/a"]), &list(&["/ab"])).is_empty());
    }
}
