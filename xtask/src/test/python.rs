//! The Python package's tests, by pytest: those that need a cluster are marked `cluster`.

use std::ffi::OsStr;

use anyhow::Result;

use super::runner::run_and_read;
use crate::cluster;
use crate::python::{Environment, PACKAGE};
use crate::results::{Outcome, Results};
use crate::shell::output;

/// Installs the package as a user would and runs its tests, on the cluster of `kubeconfig` if there is one.
pub(super) fn run(kubeconfig: Option<&OsStr>, results: &mut Results) -> Result<()> {
    let environment = Environment::prepare()?;
    environment.install_package()?;
    let mut pytest = environment.tool("pytest");
    pytest.args(["--quiet", "-rA", "--show-capture=no", PACKAGE]);
    if let Some(kubeconfig) = kubeconfig {
        pytest.env("SANDPOD_TEST_KUBECONFIG", kubeconfig).env("PATH", cluster::path_with_tools()?);
    } else {
        pytest.args(["-m", "not cluster"]);
        skip_cluster_tests(&environment, results)?;
    }
    run_and_read(&mut pytest, PACKAGE, results, read)
}

fn skip_cluster_tests(environment: &Environment, results: &mut Results) -> Result<()> {
    let listing =
        output(environment.tool("pytest").args(["--quiet", "--collect-only", "-m", "cluster", PACKAGE]))?;
    for test in listing.lines().filter(|line| line.contains("::")) {
        results.push(format!("{PACKAGE}/{test}"), Outcome::Skipped);
    }
    Ok(())
}

/// A test and its outcome, from a line of pytest's closing summary such as `PASSED tests/test_a.py::test_b`.
fn read(line: &str) -> Option<(String, Outcome)> {
    let (word, rest) = line.split_once(' ')?;
    let outcome = match word {
        "PASSED" => Outcome::Passed,
        "FAILED" | "ERROR" | "XPASS" => Outcome::Failed,
        "SKIPPED" | "XFAIL" => Outcome::Skipped,
        _ => return None,
    };
    let test = rest.split(" - ").next().filter(|test| !test.is_empty())?;
    Some((format!("{PACKAGE}/{test}"), outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_the_summary_gives_a_test_and_its_outcome() {
        let name = |test: &str| format!("bindings/python/{test}");
        assert_eq!(
            read("PASSED tests/test_a.py::test_b"),
            Some((name("tests/test_a.py::test_b"), Outcome::Passed))
        );
        assert_eq!(
            read("FAILED tests/test_a.py::test_b - assert 1 == 2"),
            Some((name("tests/test_a.py::test_b"), Outcome::Failed))
        );
        assert_eq!(
            read("XFAIL tests/test_a.py::C::test_b - why"),
            Some((name("tests/test_a.py::C::test_b"), Outcome::Skipped))
        );
        assert_eq!(read("12 passed in 3.4s"), None);
    }
}
