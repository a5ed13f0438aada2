//! The tests of the npm package, by vitest. Those that need a cluster are skipped without one.

use std::ffi::OsStr;

use anyhow::Result;

use super::runner::run_and_read;
use crate::cluster;
use crate::node::{PACKAGE, Package};
use crate::results::{Outcome, Results, TestResult};

/// Runs the package's tests, on the cluster of `kubeconfig` if there is one.
pub(super) fn run(package: &Package, kubeconfig: Option<&OsStr>) -> Result<Results> {
    let mut vitest = package.tool("vitest");
    // Those of a cluster of the user's own run by `npm run test:integration`.
    vitest.args(["run", "--exclude", "test/integration.test.ts"]).env("NO_COLOR", "1");
    if let Some(kubeconfig) = kubeconfig {
        vitest.env("SANDPOD_TEST_KUBECONFIG", kubeconfig).env("PATH", cluster::path_with_tools()?);
    }
    let mut results = Results::default();
    run_and_read(&mut vitest, PACKAGE, &mut results, read)?;
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
}
