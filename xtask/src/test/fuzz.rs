//! The fuzz targets as tests: each finds nothing, and each finds a bug that was planted for it.

use std::sync::Mutex;

use anyhow::{Result, anyhow};

use crate::corpus::targets;
use crate::fuzz::{Fuzzer, Subject, summary};
use crate::progress::{Clock, step};
use crate::results::{Outcome, Results};

/// How long each target looks for bugs; `cargo xtask fuzz` is for longer runs.
const SECONDS: u32 = 20;
/// How long it may take to find a planted bug.
const PLANTED_SECONDS: u32 = 60;

/// Runs all targets, as many at once as there are cores.
pub(super) fn run(results: &mut Results) -> Result<()> {
    let clock = Clock::start();
    let fuzzer = Fuzzer::build()?;
    step(format!("fuzzing each target for {SECONDS}s, and once more until it finds a planted bug"));
    let jobs =
        targets()?.into_iter().flat_map(|name| [(name.clone(), Subject::Real), (name, Subject::Planted)]);
    let (jobs, results) = (Mutex::new(jobs), Mutex::new(results));
    let failure = Mutex::new(None);
    let work = || {
        loop {
            let job = locked(&jobs).next();
            let Some((name, subject)) = job else { return };
            match attempt(&fuzzer, &name, subject) {
                Ok(outcome) => locked(&results).push(test_name(&name, subject), outcome),
                Err(error) => *locked(&failure) = Some(error),
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    step(format!("fuzzing took {:.0}s", clock.seconds()));
    locked(&results).took("fuzz", &clock);
    failure.into_inner().map_err(|_| anyhow!("a fuzzing thread panicked"))?.map_or(Ok(()), Err)
}

fn attempt(fuzzer: &Fuzzer, name: &str, subject: Subject) -> Result<Outcome> {
    let seconds = match subject {
        Subject::Real => SECONDS,
        Subject::Planted => PLANTED_SECONDS,
    };
    let run = fuzzer.run(name, subject, seconds)?;
    let passed = run.input.is_some() == (subject == Subject::Planted);
    let outcome = if passed { Outcome::Passed } else { Outcome::Failed };
    let said = match (subject, passed) {
        (Subject::Real, _) => summary(name, &run)?,
        (Subject::Planted, true) => format!("{name}: the planted bug was found"),
        (Subject::Planted, false) => {
            format!("{name}: the planted bug was not found, see {}", run.log.display())
        }
    };
    println!("{said}");
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
