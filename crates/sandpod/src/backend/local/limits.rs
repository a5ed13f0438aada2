//! The limits of a local sandbox and the mechanisms that enforce them.

use std::collections::BTreeMap;
use std::sync::Once;

use serde::{Deserialize, Serialize};

use super::cgroups::Cgroups;

/// The prefix of the annotations that describe the limits.
pub(super) const LIMIT_PREFIX: &str = "sandpod.dev/limit-";

/// The limits of a local sandbox.
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

    /// Logs once per process which limits are not enforced.
    pub(super) fn warn_unenforced(self, cgroups: &Cgroups) {
        static TOLD: Once = Once::new();
        if let Some(unenforced) = self.unenforced(cgroups) {
            TOLD.call_once(|| tracing::warn!("{unenforced}"));
        }
    }

    /// Returns which limits are not enforced, why, and the next step. None if all are.
    fn unenforced(self, cgroups: &Cgroups) -> Option<String> {
        let asked = [("memory", self.memory.is_some()), ("cpu", self.cpu.is_some())];
        let unenforced = asked.iter().filter(|(controller, asked)| *asked && !cgroups.hold(controller));
        let options: Vec<_> = unenforced.map(|(controller, _)| format!("{controller}_limit")).collect();
        let unenforced = (!options.is_empty()).then(|| options.join(" and "))?;
        Some(format!(
            "Local sandboxes are not held to {unenforced}: no cgroup can be made here. Run this as root, or in a cgroup that \
             is delegated to you, for example with systemd-run --user --scope; or leave the limit out."
        ))
    }

    /// Describes for each resource what enforces its limit.
    pub(super) fn held(self, cgroups: &Cgroups) -> BTreeMap<String, String> {
        let by_cgroup = |controller, limit: Option<String>| match limit {
            None => "none".to_owned(),
            Some(limit) if cgroups.hold(controller) => format!("{limit} (cgroup)"),
            Some(limit) => format!("none: {limit} was requested, but this machine permits no cgroup"),
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
        .map(|(resource, what)| (format!("{LIMIT_PREFIX}{resource}"), what))
        .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unenforced_limit_is_named_with_reason_and_next_step() {
        let nothing = Cgroups::default();
        let asked = Limits { memory: Some(1 << 20), cpu: Some(500), tasks: 9 };
        let said = asked.unenforced(&nothing).unwrap();
        assert!(said.contains("not held to memory_limit and cpu_limit: no cgroup can be made"), "{said}");
        assert!(said.contains("delegated to you"), "{said}");
        let said = Limits { memory: None, ..asked }.unenforced(&nothing).unwrap();
        assert!(said.contains("not held to cpu_limit:"), "{said}");
        assert_eq!(Limits { tasks: 9, ..Limits::default() }.unenforced(&nothing), None, "no limit is set");
    }
}
