//! Memory and tasks that each command uses.

use std::collections::HashMap;
use std::fs;

use rustix::process::{Pid, Resource, getrlimit};

use crate::cgroup::{Level, TreeReader};
use crate::process::tree;

/// The resource that is nearly used up.
#[derive(Clone, Copy, Debug)]
pub(super) enum Usage {
    Memory,
    Tasks,
}

impl Usage {
    /// Returns the message for a command that is ended for using `amount`.
    pub(super) fn reason(self, level: Level, amount: u64) -> String {
        let mebibytes = |bytes: u64| bytes.div_ceil(1 << 20);
        match self {
            Self::Memory => format!(
                "The command was ended because it used the most memory, {} MiB, when {} of the sandbox's {} MiB were used.",
                mebibytes(amount),
                mebibytes(level.used),
                mebibytes(level.limit)
            ),
            Self::Tasks => format!(
                "The command was ended because it had the most processes and threads, {amount}, when {} of the \
                 sandbox's {} were there.",
                level.used, level.limit
            ),
        }
    }

    fn of(self, pid: Pid) -> u64 {
        let Ok(status) = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())) else {
            return 0;
        };
        let value = |name: &str| {
            let value =
                status.lines().find_map(|line| line.strip_prefix(name)?.split_ascii_whitespace().next());
            value.and_then(|value| value.parse::<u64>().ok()).unwrap_or_default()
        };
        match self {
            Self::Memory => (value("RssAnon:") + value("RssShmem:")) << 10,
            Self::Tasks => value("Threads:"),
        }
    }
}

/// Returns the usage of all processes, if this process is PID 1 and so sees only those of the sandbox.
pub(super) fn of_all(usage: Usage) -> Option<TreeReader> {
    let is_first = rustix::process::getpid().as_raw_nonzero().get() == 1;
    is_first.then(|| TreeReader {
        used: tree::processes().iter().map(|process| usage.of(process.pid)).sum(),
        limit: match usage {
            Usage::Memory => None,
            Usage::Tasks => getrlimit(Resource::Nproc).current,
        },
    })
}

/// Returns the supervisor of the command that uses the most, and its usage. A background process whose command has ended
/// counts by itself, if it was reparented to this process.
pub(super) fn largest(supervisors: &[Pid], usage: Usage) -> Option<(Pid, u64)> {
    let me = rustix::process::getpid();
    let takes_orphans = me.as_raw_nonzero().get() == 1
        || rustix::process::child_subreaper().is_ok_and(|reaper| reaper.is_some());
    let processes = tree::processes();
    let parents: HashMap<i32, i32> =
        processes.iter().map(|process| (process.pid.as_raw_nonzero().get(), process.parent)).collect();
    let root = |pid: Pid| {
        let mut pid = pid.as_raw_nonzero().get();
        // Parents may change while they are read, so the length of the chain is bounded.
        for _ in 0..processes.len() {
            let found = Pid::from_raw(pid)?;
            let parent = *parents.get(&pid)?;
            if supervisors.contains(&found) || (takes_orphans && parent == me.as_raw_nonzero().get()) {
                return Some(found);
            }
            pid = parent;
        }
        None
    };
    let mut amounts: HashMap<Pid, u64> = HashMap::new();
    for process in processes.iter().filter(|process| !process.is_zombie) {
        if let Some(root) = root(process.pid) {
            // A supervisor is part of the guest.
            let amount = if supervisors.contains(&process.pid) { 0 } else { usage.of(process.pid) };
            *amounts.entry(root).or_default() += amount;
        }
    }
    amounts.into_iter().max_by_key(|(_, amount)| *amount)
}
