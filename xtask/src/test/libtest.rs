//! The output of a Rust test binary: the outcome of each test, and how long it ran.
//!
//! The binary prints no times. It starts its tests in the order of its listing, a fixed number at once, and prints a line
//! when one ends. So the next test of the listing started at that moment.
#![expect(clippy::disallowed_types, reason = "xtask has no async runtime whose clock it could use")]

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use crate::results::{Outcome, TestResult};

/// Reads the lines of one test binary.
pub(super) struct Reader {
    suite: String,
    waiting: VecDeque<String>,
    started: HashMap<String, Instant>,
}

impl Reader {
    /// A reader for the binary of `suite`, which starts now and runs `tests` in this order, `threads` of them at once.
    pub(super) fn new(suite: &str, tests: Vec<String>, threads: usize) -> Self {
        let mut reader = Self { suite: suite.to_owned(), waiting: tests.into(), started: HashMap::new() };
        (0..threads).for_each(|_| reader.start_next());
        reader
    }

    /// The test that ends with this line.
    pub(super) fn read(&mut self, line: &str) -> Option<TestResult> {
        let (test, outcome) = parse(line)?;
        let seconds = self.started.remove(test).map(|started| started.elapsed().as_secs_f64());
        self.start_next();
        Some(TestResult { name: format!("{}::{test}", self.suite), outcome, seconds })
    }

    fn start_next(&mut self) {
        if let Some(test) = self.waiting.pop_front() {
            self.started.insert(test, Instant::now());
        }
    }
}

/// The tests that a binary lists with `--list --format=terse`.
pub(super) fn listed(listing: &str) -> Vec<String> {
    listing.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// A test and its outcome, from a line such as `test module::name ... ok`.
fn parse(line: &str) -> Option<(&str, Outcome)> {
    let (test, outcome) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let outcome = match outcome.split([',', ' ']).next()? {
        "ok" => Outcome::Passed,
        "FAILED" => Outcome::Failed,
        "ignored" => Outcome::Skipped,
        _ => return None,
    };
    // A suite with a harness of its own pads names.
    Some((test.trim_end(), outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_a_test_binary_gives_a_test_and_its_outcome() {
        assert_eq!(parse("test a::b ... ok"), Some(("a::b", Outcome::Passed)));
        assert_eq!(parse("test a::b   ... FAILED"), Some(("a::b", Outcome::Failed)));
        assert_eq!(parse("test a::b ... ignored, needs more"), Some(("a::b", Outcome::Skipped)));
        assert_eq!(
            parse("test src/x.rs - x (line 3) - compile ... ok"),
            Some(("src/x.rs - x (line 3) - compile", Outcome::Passed))
        );
        assert_eq!(parse("test result: ok. 3 passed; 0 failed"), None);
        assert_eq!(parse("running 3 tests"), None);
    }

    #[test]
    fn a_test_starts_when_one_of_those_before_it_ends() {
        let tests = listed("a: test\nb: test\nc: test\nd: benchmark\n\n3 tests, 1 benchmark\n");
        assert_eq!(tests, ["a", "b", "c"]);
        let mut reader = Reader::new("suite", tests, 2);
        assert!(reader.started.contains_key("b") && !reader.started.contains_key("c"));
        let ended = reader.read("test b ... ok").unwrap();
        assert_eq!((ended.name.as_str(), ended.seconds.is_some()), ("suite::b", true));
        assert!(reader.started.contains_key("c"));
        assert!(reader.read("test unlisted ... ok").unwrap().seconds.is_none());
    }
}
