//! The test suites of other packages, run against the modules that replace these packages.
//!
//! A [`Peer`] is a package whose source distribution holds its tests. A [`Suite`] is a part of them that runs in one
//! place. `bindings/python/peers` holds the code that runs them, and [`PAGE`] their results.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::pytest::{self, Reader};
use super::runner::{run_and_read, side_by_side};
use crate::progress::step;
use crate::python::Environment;
use crate::results::{Outcome, Results};
use crate::shell::{command, run as succeed};
use crate::workspace::{cache, root};

/// The plugin, the replacements of the packages' modules, and the tests that are expected to fail.
const DIR: &str = "bindings/python/peers";
const PAGE: &str = "docs/peers.md";
/// The place of a suite that needs no cluster.
const NOWHERE: &str = "nowhere";

/// A package whose source distribution holds its tests.
struct Peer {
    name: &'static str,
    version: &'static str,
    sha256: &'static str,
    /// Its tests that need no cluster.
    unit: &'static [&'static str],
}

const PEERS: [Peer; 2] = [
    Peer {
        name: "langchain-k8s",
        version: "0.7.1",
        sha256: "c0d2c3ec556de9f855fd4e32f88aa445e6af7f184c30e186f45ecfcece729ed2",
        unit: &["tests/unit/test_agent.py", "tests/unit/test_imports.py", "tests/unit/test_sandbox.py"],
    },
    Peer {
        name: "langchain-k8s",
        version: "0.4.0",
        sha256: "4a175f8101cdd202f44b7f103479b03200c488180526ad074844ca009125d274",
        unit: &["tests/unit/test_agent.py", "tests/unit/test_imports.py", "tests/unit/test_sandbox.py"],
    },
];

/// The tests of both versions that need a cluster.
const INTEGRATION: [&str; 3] = [
    "tests/integration/test_kind.py",
    "tests/integration/test_agent_kind.py",
    "tests/integration/test_deepagent_kind.py",
];
const PLACES: [&str; 3] = ["guest-by-exec", "stock-by-exec", "stock-by-router"];

/// Each suite keeps several Pods ready, so more of them would only wait for the cores.
const SUITES_AT_ONCE: usize = 5;

/// Tests of a package in one place.
struct Suite {
    peer: &'static Peer,
    place: &'static str,
    tests: &'static [&'static str],
}

impl Peer {
    fn id(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }

    /// Returns its unpacked source distribution, from the cache or downloaded now.
    fn sources(&self, environment: &Environment) -> Result<PathBuf> {
        let all = cache()?.join("python/peers");
        let sources = all.join(self.sha256).join(self.id().replacen('-', "_", 1));
        if sources.exists() {
            return Ok(sources);
        }
        step(format!("downloading the tests of {} {}", self.name, self.version));
        let scratch = tempfile::tempdir()?;
        let wanted = scratch.path().join("wanted.txt");
        fs::write(&wanted, format!("{}=={} --hash=sha256:{}\n", self.name, self.version, self.sha256))?;
        let mut pip = environment.tool("pip");
        pip.args(["download", "--quiet", "--no-deps", "--require-hashes"]);
        pip.arg(format!("--no-binary={}", self.name)).arg("--requirement").arg(&wanted);
        succeed(pip.arg("--dest").arg(scratch.path()))
            .with_context(|| format!("cannot download {}", self.id()))?;
        let archive = scratch.path().join(format!("{}.tar.gz", self.id().replacen('-', "_", 1)));
        let unpacked = all.join(self.sha256);
        fs::create_dir_all(&unpacked)?;
        succeed(
            command("tar", ["--extract", "--gzip", "--file"]).arg(archive).arg("--directory").arg(unpacked),
        )?;
        Ok(sources)
    }

    fn suites(&'static self) -> Vec<Suite> {
        let on_cluster = PLACES.map(|place| Suite { peer: self, place, tests: &INTEGRATION });
        let mut suites = vec![Suite { peer: self, place: NOWHERE, tests: self.unit }];
        suites.extend(on_cluster);
        if self.version == "0.7.1" {
            let tests = &["tests/integration/test_sandboxd_kind.py"];
            suites.push(Suite { peer: self, place: "sandboxd-by-exec", tests });
        }
        suites
    }
}

impl Suite {
    /// What the names of its tests start with in the results.
    fn prefix(&self) -> String {
        format!("{}/{}", self.peer.id(), self.place)
    }

    fn run(&self, environment: &Environment, kubeconfig: Option<&OsStr>) -> Result<Results> {
        let mut results = Results::default();
        if kubeconfig.is_none() && self.place != NOWHERE {
            results.push(self.prefix(), Outcome::Skipped);
            return Ok(results);
        }
        let mut tests = pytest::command(environment, kubeconfig)?;
        tests.current_dir(self.peer.sources(environment)?);
        let dirs = ["shims", "", "../tests"].map(|dir| root().join(DIR).join(dir));
        tests.env("PYTHONPATH", std::env::join_paths(dirs)?).env("PYTHONDONTWRITEBYTECODE", "1");
        tests.args(["-p", "peer_plugin", "--peer", &self.peer.id(), "--place", self.place]);
        tests.args(["-p", "no:cacheprovider", "--override-ini=log_cli=false", "--timeout=180"]);
        tests.args(self.tests);
        let mut reader = Reader::with_prefix(&self.prefix());
        run_and_read(&mut tests, &self.prefix(), &mut results, |line| reader.read(line))?;
        Ok(results)
    }
}

/// Runs the suites, some of them side by side, and compares [`PAGE`] with their results.
pub(super) fn run(environment: &Environment, kubeconfig: Option<&OsStr>) -> Result<Results> {
    let mut suites = Vec::new();
    for peer in &PEERS {
        peer.sources(environment)?;
        suites.extend(peer.suites());
    }
    let mut all = Results::default();
    for ran in side_by_side(SUITES_AT_ONCE, suites.iter(), |suite| suite.run(environment, kubeconfig)) {
        all.append(ran?);
    }
    if kubeconfig.is_some() {
        let mut rows = Results::default();
        check(&fs::read_to_string(root().join(PAGE))?, &all, &mut rows);
        all.append(rows);
    }
    Ok(all)
}

/// Adds a failure for each suite whose numbers in the page differ from those of this run.
fn check(page: &str, ran: &Results, results: &mut Results) {
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for test in &ran.tests {
        let prefix = test.name.match_indices('/').nth(1).map_or(&*test.name, |(end, _)| &test.name[..end]);
        let (passed, all) = counts.entry(prefix).or_default();
        *passed += usize::from(test.outcome == Outcome::Passed);
        *all += 1;
    }
    for (prefix, (passed, all)) in counts {
        let cell = format!("| {passed} of {all} |");
        let found =
            page.lines().any(|line| line.contains(&format!("| `{prefix}` |")) && line.contains(&cell));
        if !found {
            println!("{PAGE}: `{prefix}` passed {passed} of {all} in this run: correct its row");
        }
        results.push(format!("{PAGE}::{prefix}"), if found { Outcome::Passed } else { Outcome::Failed });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_with_other_numbers_than_the_run_fails() {
        let mut ran = Results::default();
        for (test, outcome) in [("a", Outcome::Passed), ("b", Outcome::Skipped)] {
            ran.push(format!("package-1.0/stock-by-exec/tests/test_a.py::{test}"), outcome);
        }
        let outcome_with = |page: &str| {
            let mut results = Results::default();
            check(page, &ran, &mut results);
            results.tests.iter().map(|test| (test.name.clone(), test.outcome)).collect::<Vec<_>>()
        };
        let name = "docs/peers.md::package-1.0/stock-by-exec".to_owned();
        let right = "| `package-1.0/stock-by-exec` | stock | exec | 1 of 2 |";
        assert_eq!(outcome_with(right), [(name.clone(), Outcome::Passed)]);
        assert_eq!(outcome_with(&right.replace("1 of 2", "2 of 2")), [(name, Outcome::Failed)]);
    }
}
