//! The Python package's tests, by pytest: those that need a cluster are marked `cluster`.

use std::ffi::OsStr;

use anyhow::Result;

use super::runner::run_and_read;
use crate::cluster;
use crate::python::{Environment, PACKAGE};
use crate::results::{Outcome, Results};
use crate::shell::output;

/// Runs the package's tests, on the cluster of `kubeconfig` if there is one.
pub(super) fn run(
    environment: &Environment,
    kubeconfig: Option<&OsStr>,
    results: &mut Results,
) -> Result<()> {
    let others = Environment::prepare_others()?;
    let mut pytest = environment.tool("pytest");
    pytest.env("SANDPOD_TEST_ENVIRONMENTS", others);
    pytest.args(["--quiet", "-rA", "--show-capture=no", "--durations=20", PACKAGE]);
    if let Some(kubeconfig) = kubeconfig {
        pytest.env("SANDPOD_TEST_KUBECONFIG", kubeconfig).env("PATH", cluster::path_with_tools()?);
    } else {
        pytest.args(["-m", "not cluster"]);
        skip_cluster_tests(environment, results)?;
    }
    run_and_read(&mut pytest, PACKAGE, results, read)
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
