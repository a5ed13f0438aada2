//! Ends the largest command before the kernel ends the whole sandbox.
//!
//! When memory runs out, the kernel may kill all processes of a container; when no tasks are left, none can be started.
//! The watchdog reads the usage ([`Cgroup`]) at intervals, which are shorter when less is left: a container can
//! only read its cgroup's files and cannot request notifications. At 95 % it sends the largest command's runner a
//! reason, and the runner ends the command.

mod usage;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::process::Pid;
use tokio::sync::{Notify, oneshot};

use crate::cgroup::{Cgroup, Level};
use crate::process::tree;
use usage::{Usage, largest};

/// Assumed maximum growth of memory and tasks: the next check comes before the limit can be reached.
const BYTES_PER_SECOND: u64 = 4 << 30;
const TASKS_PER_SECOND: u64 = 10_000;
/// Bounds of the interval between two checks.
const MIN_INTERVAL: Duration = Duration::from_millis(5);
const MAX_INTERVAL: Duration = Duration::from_millis(500);
/// Interval while no command runs and only background processes of earlier ones can grow.
const IDLE_INTERVAL: Duration = Duration::from_secs(2);
/// Time for an ended command to be gone before another one is chosen.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Watches the commands of a guest.
pub(crate) struct Watchdog {
    cgroup: Cgroup,
    commands: Mutex<Commands>,
    changed: Notify,
}

#[derive(Default)]
struct Commands {
    /// Running commands by supervisor; `None` for a command whose runner has the reason already.
    running: HashMap<Pid, Option<oneshot::Sender<String>>>,
    is_watched: bool,
}

/// Current usage of the sandbox. 0 means unknown or unlimited.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Readings {
    pub(crate) memory_bytes: u64,
    pub(crate) memory_limit_bytes: u64,
    pub(crate) tasks: u64,
    pub(crate) task_limit: u64,
    /// Number of running commands.
    pub(crate) commands: u64,
}

impl Watchdog {
    pub(crate) fn new(cgroup: Cgroup) -> Self {
        Self { cgroup, commands: Mutex::default(), changed: Notify::new() }
    }

    /// Returns whether a command that uses too much memory is ended before the sandbox is.
    pub(crate) fn guards_memory(&self) -> bool {
        self.cgroup.memory().is_some()
    }

    pub(crate) fn readings(&self) -> Readings {
        // Without a cgroup, PID 1 can sum up the usage of all processes itself.
        let memory = self.cgroup.memory_bytes().or_else(|| usage::of_all(Usage::Memory)).unwrap_or_default();
        let tasks = self.cgroup.tasks().or_else(|| usage::of_all(Usage::Tasks)).unwrap_or_default();
        Readings {
            memory_bytes: memory.used,
            memory_limit_bytes: memory.limit.unwrap_or_default(),
            tasks: tasks.used,
            task_limit: tasks.limit.unwrap_or_default(),
            commands: self.lock().running.len() as u64,
        }
    }

    /// Watches a command, named by its supervisor, until the returned value is dropped.
    pub(crate) fn watch(self: &Arc<Self>, supervisor: Pid) -> Watched {
        let (sender, reason) = oneshot::channel();
        let mut commands = self.lock();
        commands.running.insert(supervisor, Some(sender));
        if self.cgroup.has_limits() && !std::mem::replace(&mut commands.is_watched, true) {
            tokio::spawn(run(Arc::downgrade(self)));
        }
        drop(commands);
        self.changed.notify_one();
        Watched { watchdog: self.clone(), supervisor, reason }
    }

    /// Checks the usage once, and returns the time until the next check.
    async fn check(&self) -> Duration {
        let (memory, tasks) = (self.cgroup.memory(), self.cgroup.task_level());
        for (level, usage) in [(memory, Usage::Memory), (tasks, Usage::Tasks)] {
            if let Some(level) = level.filter(Level::is_high) {
                self.end_largest(level, usage).await;
                return MIN_INTERVAL;
            }
        }
        if self.lock().running.is_empty() {
            return IDLE_INTERVAL;
        }
        let memory = memory.map(|level| level.headroom().saturating_mul(1000) / BYTES_PER_SECOND);
        let tasks = tasks.map(|level| level.headroom().saturating_mul(1000) / TASKS_PER_SECOND);
        let milliseconds = [memory, tasks].into_iter().flatten().min().unwrap_or(u64::MAX);
        Duration::from_millis(milliseconds).clamp(MIN_INTERVAL, MAX_INTERVAL)
    }

    /// Ends the command that uses the most, and waits until it is gone.
    async fn end_largest(&self, level: Level, usage: Usage) {
        let supervisors: Vec<_> = self.lock().running.keys().copied().collect();
        let Some((root, amount)) = largest(&supervisors, usage) else { return };
        let reason = usage.reason(level, amount);
        let sender = self.lock().running.get_mut(&root).map(Option::take);
        match sender {
            // Its runner ends it.
            Some(Some(sender)) => drop(sender.send(reason)),
            // It is being ended already.
            Some(None) => {}
            // Left behind by a command that has ended, so that no runner is left to end it.
            None => tree::kill(root).await,
        }
        let gone = async {
            while self.lock().running.contains_key(&root) {
                self.changed.notified().await;
            }
        };
        let _ = tokio::time::timeout(END_TIMEOUT, gone).await;
    }

    fn lock(&self) -> MutexGuard<'_, Commands> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks at intervals until the watchdog is dropped.
async fn run(watchdog: Weak<Watchdog>) {
    while let Some(watchdog) = watchdog.upgrade() {
        let pause = watchdog.check().await;
        if pause < IDLE_INTERVAL {
            tokio::time::sleep(pause).await;
        } else {
            // A new command ends the long interval.
            let _ = tokio::time::timeout(pause, watchdog.changed.notified()).await;
        }
    }
}

/// A watched command.
pub(crate) struct Watched {
    watchdog: Arc<Watchdog>,
    supervisor: Pid,
    reason: oneshot::Receiver<String>,
}

impl Watched {
    /// Resolves once, with the reason, when the command must end.
    pub(crate) async fn end_requested(&mut self) -> String {
        match (&mut self.reason).await {
            Ok(reason) => reason,
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watchdog.lock().running.remove(&self.supervisor);
        self.watchdog.changed.notify_one();
    }
}
