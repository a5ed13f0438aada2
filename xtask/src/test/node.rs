//! The tests of the npm package, by vitest. Those that need a cluster are skipped without one.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::runner::{run_and_read, side_by_side};
use crate::node::{PACKAGE, Package};
use crate::results::{Outcome, Results, TestResult};
use crate::runtimes::{self, Runtime};
use crate::{cluster, dist};

/// The test files that run on every version of Node: the behaviour of local sandboxes, and the end of processes.
const CORE: [&str; 2] = ["test/local.test.ts", "test/process.test.ts"];

/// Runs the package's tests, on the cluster of `kubeconfig` if there is one, and beside them the core tests on the other
/// versions of Node.
pub(super) fn run(package: &Package, kubeconfig: Option<&OsStr>) -> Result<Results> {
    let runtimes = runtimes::prepare()?;
    let runs: [&(dyn Fn() -> Result<Results> + Sync); 2] =
        [&|| run_all(package, &runtimes, kubeconfig), &|| run_core(package, &runtimes)];
    let mut results = Results::default();
    for finished in side_by_side(runs.len(), runs.into_iter(), |run| run()) {
        results.append(finished?);
    }
    Ok(results)
}

/// Runs every test on this machine's Node.
fn run_all(package: &Package, runtimes: &[Runtime], kubeconfig: Option<&OsStr>) -> Result<Results> {
    let mut vitest = package.tool("vitest");
    // Those of a cluster of the user's own run by `npm run test:integration`.
    vitest.args(["run", "--exclude", "test/integration.test.ts"]);
    vitest.env(dist::TEST_VARIABLE, dist::files_for_tests()?.dir());
    let programs: BTreeMap<_, &Path> = runtimes.iter().map(|one| (one.name, &*one.program)).collect();
    vitest.env("SANDPOD_TEST_RUNTIMES", serde_json::to_string(&programs)?);
    if let Some(kubeconfig) = kubeconfig {
        vitest.env("SANDPOD_TEST_KUBECONFIG", kubeconfig).env("PATH", cluster::path_with_tools()?);
    }
    run_vitest(&mut vitest, PACKAGE, "")
}

/// Runs the core tests on each other version of Node, one after the other.
fn run_core(package: &Package, runtimes: &[Runtime]) -> Result<Results> {
    let mut results = Results::default();
    for node in runtimes.iter().filter(|runtime| runtime.is_node()) {
        let mut vitest = package.script_on(&node.program, "vitest/vitest.mjs");
        vitest.arg("run").args(CORE);
        let variant = format!(" [{}]", node.name);
        results.append(run_vitest(&mut vitest, &format!("{PACKAGE}{variant}"), &variant)?);
    }
    Ok(results)
}

/// Runs vitest. `variant` is appended to the names of the tests.
fn run_vitest(vitest: &mut Command, suite: &str, variant: &str) -> Result<Results> {
    let mut results = Results::default();
    run_and_read(vitest.env("NO_COLOR", "1"), suite, &mut results, |line| {
        let test = read(line)?;
        Some(TestResult { name: test.name + variant, ..test })
    })?;
    Ok(results)
}

/// A test, from a line of the package's reporter such as `PASSED 12 bindings/node/test/a.test.ts::name`, with its
/// milliseconds.
fn read(line: &str) -> Option<TestResult> {
    let mut words = line.splitn(3, ' ');
    let outcome = match words.next()? {
        "PASSED" => Outcome::Passed,
        "FAILED" => Outcome::Failed,
        "SKIPPED" => Outcome::Skipped,
        _ => return None,
    };
    let milliseconds: f64 = words.next()?.parse().ok()?;
    Some(TestResult { name: words.next()?.to_owned(), outcome, seconds: Some(milliseconds / 1000.0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_reporter_gives_a_test_its_outcome_and_its_time() {
        let test = read("FAILED 250 bindings/node/test/a.test.ts::b > c d").unwrap();
        assert_eq!(
            (test.name.as_str(), test.outcome),
            ("bindings/node/test/a.test.ts::b > c d", Outcome::Failed)
        );
        assert_eq!(test.seconds, Some(0.25));
        assert!(read(" Tests  3 passed (3)").is_none());
    }

    #[test]
    fn the_name_of_a_test_ends_with_its_version_of_node() {
        let mut echo = crate::shell::command("echo", ["PASSED 1 bindings/node/test/a.test.ts::b"]);
        let results = run_vitest(&mut echo, "a test of names", " [node 22]").unwrap();
        assert_eq!(results.tests[0].name, "bindings/node/test/a.test.ts::b [node 22]");
    }
}
