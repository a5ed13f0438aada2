//! What a local sandbox may use, and what holds it to that.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::cgroups::Cgroups;

/// What a local sandbox may use.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Limits {
    /// Bytes.
    pub(super) memory: Option<u64>,
    /// Thousandths of a processor.
    pub(super) cpu: Option<u32>,
    /// Processes and threads.
    pub(super) tasks: u32,
}

impl Limits {
    pub(super) fn need_cgroups(self) -> bool {
        self.memory.is_some() || self.cpu.is_some()
    }

    /// Says of each resource what holds, for people.
    pub(super) fn held(self, cgroups: &Cgroups) -> BTreeMap<String, String> {
        let by_cgroup = |controller, limit: Option<String>| match limit {
            None => "none".to_owned(),
            Some(limit) if cgroups.hold(controller) => format!("{limit} (cgroup)"),
            Some(limit) => format!("none: {limit} was asked for, but no cgroup can be made here"),
        };
        let tasks = match self.tasks {
            0 => "none".to_owned(),
            tasks => format!("{tasks} (RLIMIT_NPROC)"),
        };
        [
            ("memory", by_cgroup("memory", self.memory.map(|bytes| format!("{bytes} bytes")))),
            ("cpu", by_cgroup("cpu", self.cpu.map(|millis| format!("{millis}m")))),
            ("tasks", tasks),
            ("disk", "none".to_owned()),
        ]
        .map(|(resource, what)| (format!("sandpod.dev/limit-{resource}"), what))
        .into()
    }
}
