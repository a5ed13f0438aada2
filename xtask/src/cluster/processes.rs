//! Processes by their PID and start time: the kernel may reuse a PID.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::progress::wait_for;

/// One process of this machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    pub(super) pid: Pid,
    started: u64,
}

/// A process as `state.json` records it.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Record {
    pid: i32,
    started: u64,
}

impl Process {
    /// All processes of this machine.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(Self::read)
    }

    /// The children of `parent`.
    pub(super) fn children(parent: Pid) -> impl Iterator<Item = Self> {
        let parent = parent.as_raw_nonzero();
        let children =
            fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        let pids: Vec<i32> = children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
        pids.into_iter().filter_map(Self::read)
    }

    /// The recorded process, if it still runs.
    pub(super) fn from_record(record: Record) -> Option<Self> {
        Self::read(record.pid).filter(|process| process.started == record.started)
    }

    pub(super) fn record(&self) -> Record {
        Record { pid: self.pid.as_raw_nonzero().get(), started: self.started }
    }

    /// Whether it runs the executable at `path`, also when that has been deleted since.
    pub(super) fn runs(&self, path: &Path) -> bool {
        fs::read_link(format!("/proc/{}/exe", self.pid.as_raw_nonzero()))
            .is_ok_and(|exe| exe.to_string_lossy().trim_end_matches(" (deleted)") == path.to_string_lossy())
    }

    /// Kills it and waits until it is gone.
    pub(super) fn kill(&self) -> Result<()> {
        // It may be gone already.
        let _ = kill_process(self.pid, Signal::KILL);
        let record = self.record();
        wait_for("the end of a process", Duration::from_secs(10), || {
            Ok(Self::from_record(record).map(|_| "it is still there".to_owned()))
        })
    }

    /// Returns the running process with this PID. A zombie counts only while some of its threads run.
    fn read(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold spaces, so the fields are counted from its end.
        let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let (state, threads) = (*fields.first()?, fields.get(17)?.parse::<u32>().ok()?);
        let started = fields.get(19)?.parse().ok()?;
        (state != "Z" || threads > 1).then_some(Self { pid: Pid::from_raw(pid)?, started })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_finds_its_process_and_no_later_one_with_the_same_number() {
        let own = Process::read(i32::try_from(std::process::id()).unwrap()).unwrap();
        let record = own.record();
        assert!(Process::from_record(record).is_some());
        assert!(Process::from_record(Record { started: record.started + 1, ..record }).is_none());
    }

    #[test]
    fn a_process_knows_the_executable_it_runs() {
        let own = Process::read(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(own.runs(&std::env::current_exe().unwrap()));
        assert!(!own.runs(Path::new("/bin/true")));
    }
}
