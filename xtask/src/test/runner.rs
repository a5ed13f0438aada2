//! Runs one test program of any language and notes what each of its tests came to.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::progress::{Clock, step};
use crate::results::{Outcome, Results};
use crate::shell::line;

/// Runs a test program, shows its output as it comes, and takes from each line what `read` finds
/// there: a test's full name and its outcome.
pub(super) fn run_and_read(
    command: &mut Command,
    suite: &str,
    results: &mut Results,
    read: impl Fn(&str) -> Option<(String, Outcome)>,
) -> Result<()> {
    let clock = Clock::start();
    step(format!("testing {suite}"));
    let before = results.tests.len();
    let spawned = command.stdout(Stdio::piped()).spawn();
    let mut child = spawned.with_context(|| format!("cannot start {}", line(command)))?;
    let lines = BufReader::new(child.stdout.take().context("the child's output is piped")?).split(b'\n');
    for line in lines {
        let line = line?;
        // What a test starts may print anything.
        let text = String::from_utf8_lossy(&line);
        if let Some((test, outcome)) = read(&text) {
            results.push(test, outcome);
        }
        println!("{text}");
    }
    let status = child.wait()?;
    let failed = results.tests[before..].iter().any(|test| test.outcome == Outcome::Failed);
    if !status.success() && !failed {
        // It died before it could say which test failed.
        println!("{} ended with {status}", line(command));
        results.push(suite.to_owned(), Outcome::Failed);
    }
    step(format!("{suite}: {} tests in {:.1}s", results.tests.len() - before, clock.seconds()));
    results.took(suite, &clock);
    Ok(())
}
