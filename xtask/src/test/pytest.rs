//! The output of pytest: the outcome of each test, and how long it ran.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::process::Command;

use anyhow::Result;

use crate::cluster;
use crate::python::Environment;
use crate::results::{Outcome, TestResult};

/// Reads the lines of one run of pytest.
#[derive(Default)]
pub(super) struct Reader {
    /// What the names of the tests start with in the results.
    prefix: String,
    /// The time of each test, its set-up and tear-down included, by its path from pytest's root.
    seconds: HashMap<String, f64>,
}

impl Reader {
    pub(super) fn with_prefix(prefix: &str) -> Self {
        Self { prefix: format!("{prefix}/"), ..Self::default() }
    }

    /// The test that a line of the closing summary names. The times of all tests are printed before it.
    pub(super) fn read(&mut self, line: &str) -> Option<TestResult> {
        if let Some((test, seconds)) = duration(line) {
            *self.seconds.entry(test.to_owned()).or_default() += seconds;
            return None;
        }
        let (test, outcome) = outcome(line)?;
        let name = format!("{}{test}", self.prefix);
        Some(TestResult { name, outcome, seconds: self.seconds_of(&test) })
    }

    /// The summary names a file by its path from where pytest was started, the times by its path from pytest's root.
    fn seconds_of(&self, test: &str) -> Option<f64> {
        let path = test.find("::").unwrap_or(test.len());
        let starts = std::iter::once(0).chain(test[..path].match_indices('/').map(|(slash, _)| slash + 1));
        starts.filter_map(|start| self.seconds.get(&test[start..])).copied().next()
    }
}

/// pytest as all suites run it: its output names each test with its outcome, and the time of each that takes long.
pub(super) fn command(environment: &Environment, kubeconfig: Option<&OsStr>) -> Result<Command> {
    let mut pytest = environment.tool("pytest");
    pytest.args(["--quiet", "-rA", "--show-capture=no", "--durations=0", "--durations-min=0.1"]);
    if let Some(kubeconfig) = kubeconfig {
        pytest.env("SANDPOD_TEST_KUBECONFIG", kubeconfig).env("PATH", cluster::path_with_tools()?);
    }
    Ok(pytest)
}

/// A test and the time of its set-up, call or tear-down, from a line such as `1.23s call     tests/test_a.py::test_b`.
fn duration(line: &str) -> Option<(&str, f64)> {
    let (seconds, rest) = line.split_once("s ")?;
    let (step, test) = rest.trim_start().split_once(' ')?;
    let seconds = seconds.trim().parse().ok()?;
    ["setup", "call", "teardown"].contains(&step).then_some((test.trim(), seconds))
}

/// A test and its outcome, from a line such as `PASSED test_a.py::test_b`.
fn outcome(line: &str) -> Option<(String, Outcome)> {
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
        assert_eq!(outcome("PASSED a/test_b.py::C::test_d"), test(Outcome::Passed));
        assert_eq!(outcome("FAILED a/test_b.py::C::test_d - assert 1 == 2"), test(Outcome::Failed));
        assert_eq!(outcome("XFAIL a/test_b.py::C::test_d - why"), test(Outcome::Skipped));
        assert_eq!(outcome("12 passed in 3.4s"), None);
    }

    #[test]
    fn the_time_of_a_test_includes_its_set_up_and_tear_down() {
        let mut reader = Reader::default();
        for line in
            ["1.50s setup    tests/test_a.py::test_b[c/d]", "  0.25s call     tests/test_a.py::test_b[c/d]"]
        {
            assert!(reader.read(line).is_none());
        }
        let seconds =
            |reader: &mut Reader, test: &str| reader.read(&format!("PASSED {test}")).unwrap().seconds;
        assert_eq!(seconds(&mut reader, "bindings/python/tests/test_a.py::test_b[c/d]"), Some(1.75));
        assert_eq!(seconds(&mut reader, "bindings/python/tests/test_a.py::test_e"), None);
    }
}
