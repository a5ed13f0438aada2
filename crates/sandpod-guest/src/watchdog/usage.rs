//! What each command uses.

use std::collections::HashMap;
use std::fs;

use rustix::process::{Pid, Resource, getrlimit};

use crate::cgroup::{Level, Reading};
use crate::process::tree;

/// What is nearly used up.
#[derive(Clone, Copy, Debug)]
pub(super) enum Usage {
    Memory,
    Tasks,
}

impl Usage {
    /// Why a command that uses `amount` is ended.
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

/// What all processes use together, if this process is the first of its namespace and so sees no others.
pub(super) fn of_all(usage: Usage) -> Option<Reading> {
    let is_first = rustix::process::getpid().as_raw_nonzero().get() == 1;
    is_first.then(|| Reading {
        used: tree::processes().iter().map(|process| usage.of(process.pid)).sum(),
        limit: match usage {
            Usage::Memory => None,
            Usage::Tasks => getrlimit(Resource::Nproc).current,
        },
    })
}

/// The command that uses the most, by its warden, and how much. What earlier commands left behind counts, each
/// by itself, where it falls to this process.
pub(super) fn largest(wardens: &[Pid], usage: Usage) -> Option<(Pid, u64)> {
    let me = rustix::process::getpid();
    let takes_orphans = me.as_raw_nonzero().get() == 1
        || rustix::process::child_subreaper().is_ok_and(|reaper| reaper.is_some());
    let processes = tree::processes();
    let parents: HashMap<i32, i32> =
        processes.iter().map(|process| (process.pid.as_raw_nonzero().get(), process.parent)).collect();
    let root = |pid: Pid| {
        let mut pid = pid.as_raw_nonzero().get();
        // Parents change while they are read; no chain is longer than there are processes.
        for _ in 0..processes.len() {
            let found = Pid::from_raw(pid)?;
            let parent = *parents.get(&pid)?;
            if wardens.contains(&found) || (takes_orphans && parent == me.as_raw_nonzero().get()) {
                return Some(found);
            }
            pid = parent;
        }
        None
    };
    let mut amounts: HashMap<Pid, u64> = HashMap::new();
    for process in processes.iter().filter(|process| !process.is_zombie) {
        if let Some(root) = root(process.pid) {
            // A warden is the guest's own.
            let amount = if wardens.contains(&process.pid) { 0 } else { usage.of(process.pid) };
            *amounts.entry(root).or_default() += amount;
        }
    }
    amounts.into_iter().max_by_key(|(_, amount)| *amount)
}
