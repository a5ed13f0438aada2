//! What the sandbox may use and uses, as its cgroup has it: version 2, or version 1 with a tree for each resource.

use std::fs;
use std::path::{Path, PathBuf};

/// Where cgroups are.
pub(crate) const ROOT: &str = "/sys/fs/cgroup";
/// Of a limit: from here on something must end.
const HIGH_PERCENT: u64 = 95;
/// Version 1 has this and more for no limit.
const NO_LIMIT: u64 = 1 << 60;

/// The files that tell about memory and tasks, with those limits that are the lowest above this process.
#[derive(Debug, Default)]
pub(crate) struct Cgroup {
    memory: Option<Resource>,
    tasks: Option<Resource>,
}

/// Where one resource is counted.
#[derive(Debug)]
struct Resource {
    used: PathBuf,
    limit: Option<u64>,
    /// Counts what the kernel can take back.
    stat: Option<PathBuf>,
}

/// What is used of a resource.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Reading {
    pub(crate) used: u64,
    pub(crate) limit: Option<u64>,
}

/// What is used of a resource that has a limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Level {
    pub(crate) used: u64,
    pub(crate) limit: u64,
}

impl Level {
    /// What may be used before something must end.
    fn mark(self) -> u64 {
        self.limit / 100 * HIGH_PERCENT
    }

    pub(crate) fn is_high(&self) -> bool {
        self.used >= self.mark()
    }

    /// What is left until then.
    pub(crate) fn left(self) -> u64 {
        self.mark().saturating_sub(self.used)
    }
}

/// How the two versions name the files of a resource.
struct Names {
    controller: &'static str,
    used: &'static str,
    limit: &'static str,
    stat: Option<&'static str>,
}

impl Cgroup {
    /// The cgroup of this process below `root`; `membership` is what `/proc/self/cgroup` says.
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

    /// What is used of the memory, if it has a limit.
    pub(crate) fn memory(&self) -> Option<Level> {
        self.memory.as_ref()?.level()
    }

    /// How many tasks there are, if they have a limit.
    pub(crate) fn task_level(&self) -> Option<Level> {
        self.tasks.as_ref()?.level()
    }

    pub(crate) fn memory_bytes(&self) -> Option<Reading> {
        self.memory.as_ref().map(Resource::reading)
    }

    pub(crate) fn tasks(&self) -> Option<Reading> {
        self.tasks.as_ref().map(Resource::reading)
    }
}

impl Resource {
    /// In a container the root shows its own cgroup, whatever the path; elsewhere the path leads there. Of
    /// all cgroups on it the one with the lowest limit counts.
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
        // Far from the limit it does not matter what could be taken back.
        let used = number(&self.used)?;
        let used = if used < limit / 2 { used } else { used.saturating_sub(self.reclaimable()) };
        Some(Level { used, limit })
    }

    fn reading(&self) -> Reading {
        let used = number(&self.used).unwrap_or_default();
        Reading { used: used.saturating_sub(self.reclaimable()), limit: self.limit }
    }

    /// Contents of files that the kernel drops before it ends anything: a command that reads much is not one
    /// that uses much.
    fn reclaimable(&self) -> u64 {
        let Some(stat) = self.stat.as_ref().and_then(|stat| fs::read_to_string(stat).ok()) else { return 0 };
        let value = |name: &str| {
            let value = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value.and_then(|value| value.trim().parse::<u64>().ok())
        };
        // Version 1 counts what is below only in those with `total_`.
        let kind = |name: &str| value(&format!("total_{name}")).or_else(|| value(name)).unwrap_or_default();
        kind("inactive_file").saturating_add(kind("active_file"))
    }
}

/// The path of a controller's cgroup; the empty name is version 2's.
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
    fn a_container_of_version_2_finds_its_limits_at_the_root() {
        let root = tree(&[
            ("memory.current", "900\n"),
            ("memory.max", "1000\n"),
            ("memory.stat", "anon 100\nactive_file 300\ninactive_file 100\n"),
            ("pids.current", "7\n"),
            ("pids.max", "max\n"),
        ]);
        let cgroup = Cgroup::find(root.path(), "0::/\n");
        assert_eq!(cgroup.memory(), Some(Level { used: 500, limit: 1000 }));
        assert_eq!(cgroup.tasks(), Some(Reading { used: 7, limit: None }));
        assert_eq!(cgroup.task_level(), None);
    }

    #[test]
    fn a_container_of_version_1_finds_its_limits_in_a_tree_for_each_resource() {
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
    fn the_lowest_limit_above_a_process_counts() {
        let root = tree(&[
            ("a/memory.current", "10\n"),
            ("a/memory.max", "500\n"),
            ("a/b/memory.current", "5\n"),
            ("a/b/memory.max", "max\n"),
        ]);
        assert_eq!(Cgroup::find(root.path(), "0::/a/b\n").memory(), Some(Level { used: 10, limit: 500 }));
    }

    #[test]
    fn without_a_limit_nothing_is_watched() {
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
