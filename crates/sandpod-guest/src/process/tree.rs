//! The process tree, from `/proc`.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal};

/// Interval and maximum number of attempts to kill a tree.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
const MAX_POLLS: usize = 1000;

/// A process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessEntry {
    pub(crate) pid: Pid,
    pub(crate) parent: i32,
    pub(crate) is_zombie: bool,
}

/// Returns all processes that are visible here.
pub(crate) fn processes() -> Vec<ProcessEntry> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(process).collect()
}

/// Parses `/proc/PID/stat`. The name in it is in brackets and may itself contain brackets.
fn process(pid: i32) -> Option<ProcessEntry> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = std::str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace();
    let is_zombie = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    Some(ProcessEntry { pid: Pid::from_raw(pid)?, parent, is_zombie })
}

/// Returns all living descendants of a process.
pub(crate) fn descendants(root: Pid) -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<ProcessEntry>> = HashMap::new();
    for process in processes() {
        children.entry(process.parent).or_default().push(process);
    }
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    let mut next = vec![root.as_raw_nonzero().get()];
    while let Some(parent) = next.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            if seen.insert(child.pid) {
                next.push(child.pid.as_raw_nonzero().get());
                if !child.is_zombie {
                    found.push(child.pid);
                }
            }
        }
    }
    found
}

/// Sends a signal to all living descendants of a process.
pub(crate) fn signal_below(root: Pid, signal: Signal) {
    for pid in descendants(root) {
        // This fails for a process that has ended, which needs no signal.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Kills a process that has no supervisor, with all its descendants. It is stopped first, so that it starts no
/// others meanwhile.
pub(crate) async fn kill(root: Pid) {
    let _ = rustix::process::kill_process(root, Signal::STOP);
    for _ in 0..MAX_POLLS {
        let living = descendants(root);
        if living.is_empty() {
            break;
        }
        for pid in living {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let _ = rustix::process::kill_process(root, Signal::KILL);
}
