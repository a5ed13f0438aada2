//! Limits and usage of the sandbox, from its cgroup: version 2, or version 1 with a hierarchy for each resource.

use std::fs;
use std::path::{Path, PathBuf};

/// Root of the cgroup file systems.
pub(crate) const ROOT: &str = "/sys/fs/cgroup";
/// Percentage of a limit at which a command must be ended.
const HIGH_PERCENT: u64 = 95;
/// Version 1 reports this or a larger number for no limit.
const NO_LIMIT: u64 = 1 << 60;

/// Memory and tasks, each from the cgroup with the lowest limit among the ancestors of this process.
#[derive(Debug, Default)]
pub(crate) struct Cgroup {
    memory: Option<Resource>,
    tasks: Option<Resource>,
}

/// Files and limit of one resource.
#[derive(Debug)]
struct Resource {
    used: PathBuf,
    limit: Option<u64>,
    /// File with the counters of reclaimable memory.
    stat: Option<PathBuf>,
}

/// Usage of a resource.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct TreeReader {
    pub(crate) used: u64,
    pub(crate) limit: Option<u64>,
}

/// Usage of a resource that has a limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Level {
    pub(crate) used: u64,
    pub(crate) limit: u64,
}

impl Level {
    /// Returns the usage at which a command must be ended.
    fn threshold(self) -> u64 {
        self.limit / 100 * HIGH_PERCENT
    }

    pub(crate) fn is_high(&self) -> bool {
        self.used >= self.threshold()
    }

    /// Returns the amount that may still be used until then.
    pub(crate) fn headroom(self) -> u64 {
        self.threshold().saturating_sub(self.used)
    }
}

/// Names of a resource's files in one of the two versions.
struct Names {
    controller: &'static str,
    used: &'static str,
    limit: &'static str,
    stat: Option<&'static str>,
}

impl Cgroup {
    /// Finds the cgroup of this process below `root`; `membership` is the content of `/proc/self/cgroup`.
    pub(crate) fn find(root: &Path, membership: &str) -> Self {
        let find = |second: &Names, first: &Names| {
            let first_root = root.join(first.controller);
            Resource::find(root, &path_in(membership, ""), second)
                .or_else(|| Resource::find(&first_root, &path_in(membership, first.controller), first))
        };
        let memory = find(
            &Names { controller: "", used: "memory.current", limit: "memory.max", stat: Some("memory.stat") },
            &Names {
                controller: "memory",
                used: "memory.usage_in_bytes",
                limit: "memory.limit_in_bytes",
                stat: Some("memory.stat"),
            },
        );
        let names = |controller| Names { controller, used: "pids.current", limit: "pids.max", stat: None };
        Self { memory, tasks: find(&names(""), &names("pids")) }
    }

    pub(crate) fn has_limits(&self) -> bool {
        self.memory().is_some() || self.task_level().is_some()
    }

    /// Returns the memory usage, if memory is limited.
    pub(crate) fn memory(&self) -> Option<Level> {
        self.memory.as_ref()?.level()
    }

    /// Returns the number of tasks, if it is limited.
    pub(crate) fn task_level(&self) -> Option<Level> {
        self.tasks.as_ref()?.level()
    }

    pub(crate) fn memory_bytes(&self) -> Option<TreeReader> {
        self.memory.as_ref().map(Resource::reading)
    }

    pub(crate) fn tasks(&self) -> Option<TreeReader> {
        self.tasks.as_ref().map(Resource::reading)
    }
}

impl Resource {
    /// Finds the cgroup with the lowest limit. In a container the root is its own cgroup, whatever the path; elsewhere
    /// the path leads there, and all cgroups on it are considered.
    fn find(root: &Path, path: &str, names: &Names) -> Option<Self> {
        let path = path.trim_start_matches('/');
        let dirs =
            Path::new(path).ancestors().map(|dir| root.join(dir)).filter(|dir| dir.join(names.used).exists());
        let found = dirs.map(|dir| Self {
            limit: number(&dir.join(names.limit)).filter(|limit| *limit < NO_LIMIT),
            used: dir.join(names.used),
            stat: names.stat.map(|stat| dir.join(stat)),
        });
        found.min_by_key(|resource| resource.limit.unwrap_or(u64::MAX))
    }

    fn level(&self) -> Option<Level> {
        let limit = self.limit?;
        // Far from the limit the reclaimable part does not matter.
        let used = number(&self.used)?;
        let used = if used < limit / 2 { used } else { used.saturating_sub(self.reclaimable()) };
        Some(Level { used, limit })
    }

    fn reading(&self) -> TreeReader {
        let used = number(&self.used).unwrap_or_default();
        TreeReader { used: used.saturating_sub(self.reclaimable()), limit: self.limit }
    }

    /// Returns the size of the page cache, which the kernel drops before it ends a process: reading large files does not
    /// count as memory usage.
    fn reclaimable(&self) -> u64 {
        let Some(stat) = self.stat.as_ref().and_then(|stat| fs::read_to_string(stat).ok()) else { return 0 };
        let value = |name: &str| {
            let value = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value.and_then(|value| value.trim().parse::<u64>().ok())
        };
        // In version 1 only the `total_` counters include descendants.
        let kind = |name: &str| value(&format!("total_{name}")).or_else(|| value(name)).unwrap_or_default();
        kind("inactive_file").saturating_add(kind("active_file"))
    }
}

/// Returns the path of a controller's cgroup. The empty name means version 2.
fn path_in(membership: &str, controller: &str) -> String {
    let path = membership.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then_some(path)
    });
    path.unwrap_or("/").to_owned()
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    #[test]
    fn version_2_limits_are_found_at_the_root() {
        let root = tree(&[
            ("memory.current", "900\n"),
            ("memory.max", "1000\n"),
            ("memory.stat", "anon 100\nactive_file 300\ninactive_file 100\n"),
            ("pids.current", "7\n"),
            ("pids.max", "max\n"),
        ]);
        let cgroup = Cgroup::find(root.path(), "0::/\n");
        assert_eq!(cgroup.memory(), Some(Level { used: 500, limit: 1000 }));
        assert_eq!(cgroup.tasks(), Some(TreeReader { used: 7, limit: None }));
        assert_eq!(cgroup.task_level(), None);
    }

    #[test]
    fn version_1_limits_are_found_in_one_hierarchy_per_resource() {
        let root = tree(&[
            ("memory/memory.usage_in_bytes", "960\n"),
            ("memory/memory.limit_in_bytes", "1000\n"),
            ("memory/memory.stat", "inactive_file 1\ntotal_inactive_file 5\ntotal_active_file 5\n"),
            ("pids/pids.current", "40\n"),
            ("pids/pids.max", "100\n"),
        ]);
        let cgroup = Cgroup::find(root.path(), "5:memory:/kubepods/pod1\n4:pids:/kubepods/pod1\n");
        assert_eq!(cgroup.memory(), Some(Level { used: 950, limit: 1000 }));
        assert!(cgroup.memory().unwrap().is_high());
        assert_eq!(cgroup.task_level(), Some(Level { used: 40, limit: 100 }));
    }

    #[test]
    fn the_lowest_limit_of_all_ancestors_counts() {
        let root = tree(&[
            ("a/memory.current", "10\n"),
            ("a/memory.max", "500\n"),
            ("a/b/memory.current", "5\n"),
            ("a/b/memory.max", "max\n"),
        ]);
        assert_eq!(Cgroup::find(root.path(), "0::/a/b\n").memory(), Some(Level { used: 10, limit: 500 }));
    }

    #[test]
    fn unlimited_resources_have_no_level() {
        let unlimited = tree(&[
            ("memory/memory.usage_in_bytes", "5\n"),
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        for root in [tree(&[]), tree(&[("memory.current", "5\n"), ("memory.max", "max\n")]), unlimited] {
            let cgroup = Cgroup::find(root.path(), "");
            assert!(!cgroup.has_limits());
        }
    }
}
