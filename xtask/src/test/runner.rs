//! Runs one test program of any language and records the outcome and the time of each of its tests.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::progress::{Clock, step};
use crate::results::{Outcome, Results, TestResult};
use crate::shell::line;
use crate::workspace::target;

/// Runs `work` on all items, at most `limit` of them at once, and returns the results in the order of their ends.
pub(super) fn side_by_side<I: Send, R: Send>(
    limit: usize,
    items: impl Iterator<Item = I> + Send,
    work: impl Fn(I) -> Result<R> + Sync,
) -> Vec<Result<R>> {
    let (items, done) = (Mutex::new(items), Mutex::new(Vec::new()));
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..limit {
            scope.spawn(|| {
                while let Some(item) = next() {
                    let result = work(item);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push(result);
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a test program and takes from each line of its output the test that `read` finds there.
///
/// The output goes to a log file, because programs run side by side. It is printed when a test fails.
pub(super) fn run_and_read(
    command: &mut Command,
    suite: &str,
    results: &mut Results,
    mut read: impl FnMut(&str) -> Option<TestResult>,
) -> Result<()> {
    let clock = Clock::start();
    let path = log_file(suite)?;
    let mut log = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    step(format!("testing {suite}"));
    let before = results.tests.len();
    // Not piped: a process that outlives its test may keep the descriptor.
    let spawned = command.stdout(Stdio::piped()).stderr(log.try_clone()?).spawn();
    let mut child = spawned.with_context(|| format!("cannot start {}", line(command)))?;
    let lines = BufReader::new(child.stdout.take().context("the child's output is piped")?).split(b'\n');
    for line in lines {
        let mut line = line?;
        // Tests may print anything, also bytes that are not UTF-8.
        results.tests.extend(read(&String::from_utf8_lossy(&line)));
        line.push(b'\n');
        log.write_all(&line)?;
    }
    let cpu_seconds = cpu_seconds(child.id());
    let status = child.wait()?;
    let ran = results.tests.len() - before;
    let mut failed = results.tests[before..].iter().any(|test| test.outcome == Outcome::Failed);
    if !status.success() && !failed {
        // It ended before it could name the failed test.
        failed = true;
        results.push(suite.to_owned(), Outcome::Failed);
    }
    if failed {
        print!("{}", String::from_utf8_lossy(&fs::read(&path)?));
        println!("{} ended with {status}; its output is in {}", line(command), path.display());
    }
    results.cpu_seconds += cpu_seconds;
    step(format!("{suite}: {ran} tests in {:.1}s, {cpu_seconds:.1}s of CPU", clock.seconds()));
    Ok(())
}

/// The log file of a suite, below the build output.
fn log_file(suite: &str) -> Result<PathBuf> {
    let dir = target().join("sandpod-test-logs");
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let name: String =
        suite.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
    Ok(dir.join(format!("{name}.log")))
}

/// The CPU time that a child and its own children have used; waits until the child has ended, without reaping it.
fn cpu_seconds(child: u32) -> f64 {
    /// The unit of `/proc`: `USER_HZ`, which is 100 on every architecture that we run on.
    const TICKS_PER_SECOND: f64 = 100.0;
    let Some(pid) = i32::try_from(child).ok().and_then(Pid::from_raw) else { return 0.0 };
    if waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).is_err() {
        return 0.0;
    }
    let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
    // The program's name may hold spaces. utime, stime, cutime and cstime are fields 14 to 17; `fields` starts at 3.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let ticks = fields.split(' ').skip(11).take(4).filter_map(|ticks| ticks.parse::<f64>().ok());
    ticks.sum::<f64>() / TICKS_PER_SECOND
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::command;

    #[test]
    fn all_items_are_worked_on_by_a_limited_number_of_threads() {
        let mut results: Vec<_> = side_by_side(2, 1..6, |item| Ok(item * 2)).into_iter().flatten().collect();
        results.sort_unstable();
        assert_eq!(results, [2, 4, 6, 8, 10]);
    }

    #[test]
    fn the_cpu_time_of_a_child_includes_its_own_children() {
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let mut child = command("sh", ["-c", &format!("({busy}); true")]).spawn().unwrap();
        assert!(cpu_seconds(child.id()) > 0.0);
        assert!(child.wait().unwrap().success());
    }
}
