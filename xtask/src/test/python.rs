//! The tests of the Python package, by pytest. Those that need a cluster are marked `cluster`.

use std::ffi::OsStr;

use anyhow::Result;

use super::pytest::{self, Reader};
use super::runner::run_and_read;
use crate::dist;
use crate::python::{Environment, PACKAGE};
use crate::results::{Outcome, Results};
use crate::shell::output;

/// Tests wait more than they compute, so there are more processes than cores.
const PROCESSES: &str = "--numprocesses=5";

/// Runs the package's tests, on the cluster of `kubeconfig` if there is one.
pub(super) fn run(environment: &Environment, kubeconfig: Option<&OsStr>) -> Result<Results> {
    let others = Environment::prepare_others()?;
    let mut results = Results::default();
    let mut tests = pytest::command(environment, kubeconfig)?;
    tests.env(dist::TEST_VARIABLE, dist::files_for_tests()?.dir());
    tests.env("SANDPOD_TEST_ENVIRONMENTS", &others).args([PROCESSES, PACKAGE]);
    if kubeconfig.is_none() {
        tests.args(["-m", "not cluster"]);
        skip_cluster_tests(environment, &mut results)?;
    }
    let mut reader = Reader::default();
    run_and_read(&mut tests, PACKAGE, &mut results, |line| reader.read(line))?;
    Ok(results)
}

fn skip_cluster_tests(environment: &Environment, results: &mut Results) -> Result<()> {
    let listing =
        output(environment.tool("pytest").args(["--quiet", "--collect-only", "-m", "cluster", PACKAGE]))?;
    for test in listing.lines().filter(|line| line.contains("::")) {
        results.push(test.to_owned(), Outcome::Skipped);
    }
    Ok(())
}
