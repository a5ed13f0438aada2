//! A run of the tests as jobs: each starts as soon as the jobs that it needs are done, beside all others.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

use anyhow::{Error, Result, anyhow, bail};

use crate::progress::{Clock, step};
use crate::results::Results;

type Work<'a> = Box<dyn FnOnce() -> Result<Results> + Send + 'a>;

/// The jobs of a run.
#[derive(Default)]
pub(super) struct Plan<'a> {
    jobs: Vec<Job<'a>>,
    last_computing: Option<&'static str>,
}

/// One step of a run.
struct Job<'a> {
    name: &'static str,
    needs: Vec<&'static str>,
    /// A job that would compete with this one for the processor, whether it succeeds or not.
    after: Option<&'static str>,
    work: Work<'a>,
}

/// Whether each finished job succeeded.
#[derive(Default)]
struct Finished {
    jobs: Mutex<HashMap<&'static str, bool>>,
    changed: Condvar,
}

impl<'a> Plan<'a> {
    /// Adds a job that starts after those of `needs` that are in the plan.
    pub(super) fn add(
        &mut self,
        name: &'static str,
        needs: &[&'static str],
        work: impl FnOnce() -> Result<Results> + Send + 'a,
    ) {
        let needs = needs.iter().copied().filter(|need| self.has(need)).collect();
        self.jobs.push(Job { name, needs, after: None, work: Box::new(work) });
    }

    /// Adds a job that computes: it also starts after the last such job, even if that one failed.
    pub(super) fn add_computing(
        &mut self,
        name: &'static str,
        needs: &[&'static str],
        work: impl FnOnce() -> Result<Results> + Send + 'a,
    ) {
        self.add(name, needs, work);
        if let Some(job) = self.jobs.last_mut() {
            job.after = self.last_computing.replace(name);
        }
    }

    fn has(&self, name: &str) -> bool {
        self.jobs.iter().any(|job| job.name == name)
    }

    /// Runs all jobs. A job that fails stops those that need it and no others; the first error is returned.
    pub(super) fn run(self, results: &mut Results) -> Result<()> {
        let finished = Finished::default();
        let ran: Vec<_> = thread::scope(|scope| {
            let start = |job: Job<'a>| scope.spawn(|| job.run(&finished));
            let running: Vec<_> = self.jobs.into_iter().map(start).collect();
            running.into_iter().map(|job| job.join().unwrap_or_else(|_| bail!("a job panicked"))).collect()
        });
        let mut first_error = Ok(());
        for ran in ran {
            match ran {
                Ok(ran) => results.append(ran),
                Err(error) => first_error = first_error.and(Err(error)),
            }
        }
        first_error
    }
}

impl Job<'_> {
    fn run(self, finished: &Finished) -> Result<Results> {
        let Self { name, needs, after, work } = self;
        // Reports the job as failed if it panics.
        let report = Report { finished, name, succeeded: false };
        if let Some(after) = after {
            finished.wait_for(&[after]);
        }
        if let Some(failed) = finished.wait_for(&needs) {
            step(format!("{name}: not run, because `{failed}` failed"));
            return Ok(Results::default());
        }
        let clock = Clock::start();
        let ran = work();
        report.end(ran.is_ok());
        match ran {
            Ok(mut results) => {
                results.complete_part(name, &clock);
                Ok(results)
            }
            Err(error) => {
                let error: Error = error.context(name);
                step(format!("{error:#}"));
                Err(anyhow!("{error:#}"))
            }
        }
    }
}

/// Adds a job to the finished ones when it is dropped.
struct Report<'a> {
    finished: &'a Finished,
    name: &'static str,
    succeeded: bool,
}

impl Report<'_> {
    fn end(mut self, succeeded: bool) {
        self.succeeded = succeeded;
    }
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        let mut jobs = self.finished.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.insert(self.name, self.succeeded);
        self.finished.changed.notify_all();
    }
}

impl Finished {
    /// Waits for all jobs of `needs`; returns one that failed.
    fn wait_for(&self, needs: &[&'static str]) -> Option<&'static str> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        while !needs.iter().all(|need| jobs.contains_key(need)) {
            jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
        needs.iter().copied().find(|need| !jobs[need])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Outcome;

    fn named(name: &str) -> Results {
        let mut results = Results::default();
        results.push(name.to_owned(), Outcome::Passed);
        results
    }

    #[test]
    fn computing_jobs_run_one_by_one_also_after_one_that_failed() {
        let order = Mutex::new(Vec::new());
        let mut plan = Plan::default();
        plan.add_computing("first", &[], || {
            thread::sleep(std::time::Duration::from_millis(20));
            order.lock().unwrap().push("first");
            bail!("it failed")
        });
        plan.add_computing("second", &[], || {
            order.lock().unwrap().push("second");
            Ok(Results::default())
        });
        let error = plan.run(&mut Results::default()).unwrap_err();
        assert!(error.to_string().contains("it failed"), "{error}");
        assert_eq!(*order.lock().unwrap(), ["first", "second"]);
    }

    #[test]
    fn a_job_runs_after_those_it_needs_and_a_failed_one_stops_only_those_that_need_it() {
        let order = Mutex::new(Vec::new());
        let note = |name: &'static str| order.lock().unwrap().push(name);
        let mut plan = Plan::default();
        plan.add("build", &[], || {
            thread::sleep(std::time::Duration::from_millis(20));
            note("build");
            Ok(Results::default())
        });
        plan.add("broken", &[], || bail!("no disk"));
        plan.add("tests", &["build", "not in this plan"], || {
            note("tests");
            Ok(named("a"))
        });
        plan.add("stopped", &["broken"], || Ok(named("b")));
        plan.add("stopped too", &["stopped"], || Ok(named("c")));
        let mut results = Results::default();
        assert_eq!(plan.run(&mut results).unwrap_err().to_string(), "broken: no disk");
        assert_eq!(order.into_inner().unwrap(), ["build", "tests"]);
        assert_eq!(results.tests.iter().map(|test| test.name.as_str()).collect::<Vec<_>>(), ["a"]);
        assert_eq!(
            results.parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>(),
            ["build", "tests"]
        );
    }
}
