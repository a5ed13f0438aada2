//! The Python package's tests, by pytest: those that need a cluster are marked `cluster`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;

use anyhow::Result;

use super::runner::{Job, run_and_read, side_by_side};
use crate::cluster;
use crate::python::{Environment, PACKAGE};
use crate::results::{Outcome, Results};
use crate::shell::output;
use crate::workspace::root;

/// The package's tests, and what the files begin with that run beside the others.
const TESTS: &str = "bindings/python/tests";
const DOCUMENTS: &str = "test_document_";

/// Runs the package's tests, on the cluster of `kubeconfig` if there is one.
pub(super) fn run(environment: &Environment, kubeconfig: Option<&OsStr>) -> Result<Results> {
    let others = Environment::prepare_others()?;
    let pytest = |suite: &str, args: Vec<OsString>| {
        let mut pytest = environment.tool("pytest");
        pytest.env("SANDPOD_TEST_ENVIRONMENTS", &others);
        pytest.args(["--quiet", "-rA", "--show-capture=no", "--durations=20"]).args(args);
        if let Some(kubeconfig) = kubeconfig {
            pytest.env("SANDPOD_TEST_KUBECONFIG", kubeconfig).env("PATH", cluster::path_with_tools()?);
        }
        let mut results = Results::default();
        run_and_read(&mut pytest, suite, &mut results, read)?;
        Ok(results)
    };
    if kubeconfig.is_none() {
        let mut results = pytest(PACKAGE, vec![PACKAGE.into(), "-m".into(), "not cluster".into()])?;
        skip_cluster_tests(environment, &mut results)?;
        return Ok(results);
    }
    let without = format!("--ignore-glob=*/{DOCUMENTS}*");
    let jobs: [Job<'_>; 2] = [
        Box::new(|| pytest(PACKAGE, vec![PACKAGE.into(), without.into()])),
        Box::new(|| pytest("the code of documents", documents()?)),
    ];
    side_by_side(jobs.into())
}

fn documents() -> Result<Vec<OsString>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(root().join(TESTS))? {
        let name = entry?.file_name();
        if name.as_encoded_bytes().starts_with(DOCUMENTS.as_bytes()) {
            files.push(Path::new(TESTS).join(name).into());
        }
    }
    files.sort();
    Ok(files)
}

fn skip_cluster_tests(environment: &Environment, results: &mut Results) -> Result<()> {
    let listing =
        output(environment.tool("pytest").args(["--quiet", "--collect-only", "-m", "cluster", PACKAGE]))?;
    for test in listing.lines().filter(|line| line.contains("::")) {
        results.push(test.to_owned(), Outcome::Skipped);
    }
    Ok(())
}

/// A test and its outcome, from a line of pytest's closing summary such as `PASSED test_a.py::test_b`;
/// pytest names the file by its path from where it was started, the root.
pub(super) fn read(line: &str) -> Option<(String, Outcome)> {
    let (word, rest) = line.split_once(' ')?;
    let outcome = match word {
        "PASSED" => Outcome::Passed,
        "FAILED" | "ERROR" | "XPASS" => Outcome::Failed,
        "SKIPPED" | "XFAIL" => Outcome::Skipped,
        _ => return None,
    };
    let test = rest.split(" - ").next().filter(|test| !test.is_empty())?;
    Some((test.to_owned(), outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_the_summary_gives_a_test_and_its_outcome() {
        let test = |outcome| Some(("a/test_b.py::C::test_d".to_owned(), outcome));
        assert_eq!(read("PASSED a/test_b.py::C::test_d"), test(Outcome::Passed));
        assert_eq!(read("FAILED a/test_b.py::C::test_d - assert 1 == 2"), test(Outcome::Failed));
        assert_eq!(read("XFAIL a/test_b.py::C::test_d - why"), test(Outcome::Skipped));
        assert_eq!(read("12 passed in 3.4s"), None);
    }
}
