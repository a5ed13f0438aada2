//! Ends the largest command before the kernel ends the whole sandbox.
//!
//! Where memory is used up, the kernel may end all of a container; where there are no tasks left, nothing in it
//! can start any more. The watchdog looks at what is used ([`Cgroup`]), seldom while there is much left and
//! often when there is little: a container may only read its cgroup's files, so it cannot ask to be woken.
//! At 95 % the command that uses the most is told so, with a sentence; who runs it ends it.

mod usage;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::process::Pid;
use tokio::sync::{Notify, oneshot};

use crate::cgroup::{Cgroup, Level};
use crate::process::tree;
use usage::{Usage, largest};

/// How fast a command may use memory and tasks up; the next look comes before it can.
const BYTES_PER_SECOND: u64 = 4 << 30;
const TASKS_PER_SECOND: u64 = 10_000;
/// Between two looks.
const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_millis(500);
/// Between two looks when no command runs and only what earlier ones left behind can grow.
const IDLE: Duration = Duration::from_secs(2);
/// How long an ended command may take to be gone before another one is looked for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Watches over the commands of a guest.
pub(crate) struct Watchdog {
    cgroup: Cgroup,
    commands: Mutex<Commands>,
    changed: Notify,
}

#[derive(Default)]
struct Commands {
    /// By their wardens; none for one that was told to end already.
    running: HashMap<Pid, Option<oneshot::Sender<String>>>,
    is_watched: bool,
}

/// What the sandbox uses now; 0 where it is not known or there is no limit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Readings {
    pub(crate) memory_bytes: u64,
    pub(crate) memory_limit_bytes: u64,
    pub(crate) tasks: u64,
    pub(crate) task_limit: u64,
    /// Commands that run now.
    pub(crate) commands: u64,
}

impl Watchdog {
    pub(crate) fn new(cgroup: Cgroup) -> Self {
        Self { cgroup, commands: Mutex::default(), changed: Notify::new() }
    }

    /// Whether a command that takes too much memory is ended before the sandbox is.
    pub(crate) fn guards_memory(&self) -> bool {
        self.cgroup.memory().is_some()
    }

    pub(crate) fn readings(&self) -> Readings {
        // Where no cgroup counts, whoever is the first process sees all that is to be counted.
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

    /// Watches over a command, named by its warden, until what this returns is dropped.
    pub(crate) fn watch(self: &Arc<Self>, warden: Pid) -> Watched {
        let (sender, reason) = oneshot::channel();
        let mut commands = self.lock();
        commands.running.insert(warden, Some(sender));
        if self.cgroup.has_limits() && !std::mem::replace(&mut commands.is_watched, true) {
            tokio::spawn(run(Arc::downgrade(self)));
        }
        drop(commands);
        self.changed.notify_one();
        Watched { watchdog: self.clone(), warden, reason }
    }

    /// Looks once; answers when to look again.
    async fn look(&self) -> Duration {
        let (memory, tasks) = (self.cgroup.memory(), self.cgroup.task_level());
        for (level, usage) in [(memory, Usage::Memory), (tasks, Usage::Tasks)] {
            if let Some(level) = level.filter(Level::is_high) {
                self.relieve(level, usage).await;
                return SHORTEST;
            }
        }
        if self.lock().running.is_empty() {
            return IDLE;
        }
        let memory = memory.map(|level| level.left().saturating_mul(1000) / BYTES_PER_SECOND);
        let tasks = tasks.map(|level| level.left().saturating_mul(1000) / TASKS_PER_SECOND);
        let milliseconds = [memory, tasks].into_iter().flatten().min().unwrap_or(u64::MAX);
        Duration::from_millis(milliseconds).clamp(SHORTEST, LONGEST)
    }

    /// Ends what uses the most, and waits until it is gone.
    async fn relieve(&self, level: Level, usage: Usage) {
        let wardens: Vec<_> = self.lock().running.keys().copied().collect();
        let Some((root, amount)) = largest(&wardens, usage) else { return };
        let reason = usage.reason(level, amount);
        let told = self.lock().running.get_mut(&root).map(Option::take);
        match told {
            // Who runs it ends it.
            Some(Some(told)) => drop(told.send(reason)),
            // It is being ended.
            Some(None) => {}
            // Left behind by a command that has ended: nobody else looks after it.
            None => tree::kill(root).await,
        }
        let gone = async {
            while self.lock().running.contains_key(&root) {
                self.changed.notified().await;
            }
        };
        let _ = tokio::time::timeout(PATIENCE, gone).await;
    }

    fn lock(&self) -> MutexGuard<'_, Commands> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks for as long as the watchdog is there.
async fn run(watchdog: Weak<Watchdog>) {
    while let Some(watchdog) = watchdog.upgrade() {
        let pause = watchdog.look().await;
        if pause < IDLE {
            tokio::time::sleep(pause).await;
        } else {
            // The next command ends the long pause.
            let _ = tokio::time::timeout(pause, watchdog.changed.notified()).await;
        }
    }
}

/// A command that is watched.
pub(crate) struct Watched {
    watchdog: Arc<Watchdog>,
    warden: Pid,
    reason: oneshot::Receiver<String>,
}

impl Watched {
    /// Resolves, once, when the command has to end, with the reason.
    pub(crate) async fn condemned(&mut self) -> String {
        match (&mut self.reason).await {
            Ok(reason) => reason,
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watchdog.lock().running.remove(&self.warden);
        self.watchdog.changed.notify_one();
    }
}
