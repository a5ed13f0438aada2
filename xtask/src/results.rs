//! The outcome of each test of the last run, kept beside the build output.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::progress::{Clock, step};
use crate::workspace::target;

/// The outcomes and times of a run.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Results {
    pub(crate) tests: Vec<TestResult>,
    /// The time of each part of the run.
    #[serde(default)]
    pub(crate) parts: Vec<PartTime>,
    /// The CPU time of the test programs since the last part was completed.
    #[serde(skip)]
    pub(crate) cpu_seconds: f64,
}

/// The time of one part of a run. Parts run side by side.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct PartTime {
    pub(crate) name: String,
    pub(crate) seconds: f64,
    /// The CPU time of its test programs, without what builds and the cluster used for them.
    pub(crate) cpu_seconds: f64,
}

/// One test. Its name is `PATH::NAME`, where the path is that of its source from the root.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct TestResult {
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
    /// How long it ran, where that is known.
    #[serde(default)]
    pub(crate) seconds: Option<f64>,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    Passed,
    Failed,
    Skipped,
}

impl Results {
    /// The file that `cargo xtask test` writes.
    pub(crate) fn file() -> PathBuf {
        target().join("sandpod-test-results.json")
    }

    pub(crate) fn load(path: &Path) -> Result<Self> {
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| {
            format!("{} holds no test results: run `cargo xtask test` again", path.display())
        })
    }

    pub(crate) fn save(&self, path: &Path) -> Result<()> {
        fs::write(path, serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    pub(crate) fn push(&mut self, name: String, outcome: Outcome) {
        self.tests.push(TestResult { name, outcome, seconds: None });
    }

    /// Completes a part of the run, which began when `clock` was started.
    pub(crate) fn complete_part(&mut self, name: &str, clock: &Clock) {
        let cpu_seconds = std::mem::take(&mut self.cpu_seconds);
        self.parts.push(PartTime { name: name.to_owned(), seconds: clock.seconds(), cpu_seconds });
    }

    /// Prints the slowest tests.
    pub(crate) fn print_slowest(&self) {
        const SHOWN: usize = 20;
        let timed = |test: &'_ TestResult| Some((test.seconds?, test.name.clone()));
        let mut tests: Vec<_> = self.tests.iter().filter_map(timed).collect();
        tests.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        if tests.is_empty() {
            return;
        }
        step("slowest tests");
        for (seconds, name) in tests.iter().take(SHOWN) {
            println!("{seconds:7.1}s  {name}");
        }
    }

    /// Appends the results of other suites.
    pub(crate) fn append(&mut self, other: Self) {
        self.tests.extend(other.tests);
        self.parts.extend(other.parts);
        self.cpu_seconds += other.cpu_seconds;
    }

    pub(crate) fn count(&self, outcome: Outcome) -> usize {
        self.tests.iter().filter(|test| test.outcome == outcome).count()
    }

    /// The line that ends a run.
    pub(crate) fn summary(&self) -> String {
        let [passed, failed, skipped] =
            [Outcome::Passed, Outcome::Failed, Outcome::Skipped].map(|outcome| self.count(outcome));
        format!("{passed} passed, {failed} failed, {skipped} skipped")
    }
}
