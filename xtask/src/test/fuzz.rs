//! The fuzz targets as tests: each finds no bug, and each finds a bug that is planted for it.

use std::sync::Mutex;

use anyhow::{Result, anyhow};

use crate::corpus::targets;
use crate::fuzz::{Fuzzer, Subject, summary};
use crate::progress::step;
use crate::results::{Outcome, Results};

/// How long each target runs, and how long it runs with `--long`.
const SECONDS: u32 = 20;
const LONG_SECONDS: u32 = 600;
/// How long it may take to find a planted bug.
const PLANTED_SECONDS: u32 = 120;

/// Runs all targets, as many at once as there are cores.
pub(super) fn run(long: bool) -> Result<Results> {
    let fuzzer = Fuzzer::build()?;
    let seconds = if long { LONG_SECONDS } else { SECONDS };
    step(format!("fuzzing each target for {seconds}s, and once more until it finds a planted bug"));
    let jobs =
        targets()?.into_iter().flat_map(|name| [(name.clone(), Subject::Real), (name, Subject::Planted)]);
    let (jobs, results) = (Mutex::new(jobs), Mutex::new(Results::default()));
    let failure = Mutex::new(None);
    let work = || {
        loop {
            let job = locked(&jobs).next();
            let Some((name, subject)) = job else { return };
            match attempt(&fuzzer, &name, subject, seconds) {
                Ok(outcome) => locked(&results).push(test_name(&name, subject), outcome),
                Err(error) => *locked(&failure) = Some(error),
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    match failure.into_inner().map_err(|_| anyhow!("a fuzzing thread panicked"))? {
        Some(error) => Err(error),
        None => results.into_inner().map_err(|_| anyhow!("a fuzzing thread panicked")),
    }
}

fn attempt(fuzzer: &Fuzzer, name: &str, subject: Subject, seconds: u32) -> Result<Outcome> {
    let seconds = match subject {
        Subject::Real => seconds,
        Subject::Planted => PLANTED_SECONDS,
    };
    let run = fuzzer.run(name, subject, seconds)?;
    let passed = run.input.is_some() == (subject == Subject::Planted);
    let outcome = if passed { Outcome::Passed } else { Outcome::Failed };
    let text = match (subject, passed) {
        (Subject::Real, _) => summary(name, &run)?,
        (Subject::Planted, true) => format!("{name}: the planted bug was found"),
        (Subject::Planted, false) => {
            format!("{name}: the planted bug was not found, see {}", run.log.display())
        }
    };
    println!("{text}");
    Ok(outcome)
}

fn test_name(target: &str, subject: Subject) -> String {
    let what = match subject {
        Subject::Real => "finds_nothing",
        Subject::Planted => "finds_a_planted_bug",
    };
    format!("fuzz/{target}::{what}")
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
