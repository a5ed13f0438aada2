//! The outcome of each test of the last run, kept beside the build output.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::progress::{Clock, step};
use crate::workspace::target;

/// What every test of a run came to.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Results {
    pub(crate) tests: Vec<TestResult>,
    /// How long each suite and each build before it took.
    #[serde(default)]
    pub(crate) times: Vec<Time>,
}

/// How long one suite or build took.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Time {
    pub(crate) name: String,
    pub(crate) seconds: f64,
}

/// One test: its name is `PATH::NAME`, the path being its source's from the root.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct TestResult {
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
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
        self.tests.push(TestResult { name, outcome });
    }

    pub(crate) fn took(&mut self, name: impl Into<String>, clock: &Clock) {
        self.times.push(Time { name: name.into(), seconds: clock.seconds() });
    }

    /// Prints what took longest, so that the next change starts there.
    pub(crate) fn print_slowest(&self) {
        const SHOWN: usize = 20;
        let mut times: Vec<_> = self.times.iter().collect();
        times.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
        step("slowest steps");
        for time in times.iter().take(SHOWN) {
            println!("{:7.1}s  {}", time.seconds, time.name);
        }
    }

    /// Appends what another run of suites came to.
    pub(crate) fn append(&mut self, other: Self) {
        self.tests.extend(other.tests);
        self.times.extend(other.times);
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
