//! Runs one test program of any language and notes what each of its tests came to.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};

use crate::progress::{Clock, step};
use crate::results::{Outcome, Results};
use crate::shell::line;

/// Test programs that may run at the same time as others.
pub(super) type Job<'a> = Box<dyn FnOnce() -> Result<Results> + Send + 'a>;

/// Runs jobs at the same time, for tests that wait more than they work.
pub(super) fn side_by_side(jobs: Vec<Job<'_>>) -> Result<Results> {
    let ran: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> = jobs.into_iter().map(|job| scope.spawn(job)).collect();
        running
            .into_iter()
            .map(|job| job.join().unwrap_or_else(|_| bail!("a thread of the tests panicked")))
            .collect()
    });
    let mut results = Results::default();
    for ran in ran {
        results.append(ran?);
    }
    Ok(results)
}

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
