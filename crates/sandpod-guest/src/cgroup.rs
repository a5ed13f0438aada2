//! What the sandbox as a whole uses, as its control group has it (versions 1 and 2).

use std::fs;
use std::path::{Path, PathBuf};

const MOUNT: &str = "/sys/fs/cgroup";
/// Version 1 says "no limit" with a number near the largest; no machine has as much.
const NO_LIMIT: u64 = 1 << 60;

/// A reading; 0 is "not known", for a limit also "none".
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Usage {
    pub(crate) now: u64,
    pub(crate) limit: u64,
}

/// The memory in use, with what the kernel caches for it.
pub(crate) fn memory() -> Usage {
    let names = ["memory.current", "memory.max"];
    read("memory", names, ["memory.usage_in_bytes", "memory.limit_in_bytes"])
}

/// The processes and threads.
pub(crate) fn tasks() -> Usage {
    let names = ["pids.current", "pids.max"];
    read("pids", names, names)
}

fn read(controller: &str, names: [&str; 2], old_names: [&str; 2]) -> Usage {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mount = Path::new(MOUNT);
    let found = usage(mount, group(&groups, ""), names);
    found
        .or_else(|| usage(&mount.join(controller), group(&groups, controller), old_names))
        .unwrap_or_default()
}

/// The path of a group in `/proc/self/cgroup`, whose lines are `number:controllers:path`.
fn group<'a>(groups: &'a str, controller: &str) -> &'a str {
    let path = |line: &'a str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let is_it = parts.next()?.split(',').any(|name| name == controller);
        parts.next().filter(|_| is_it)
    };
    groups.lines().find_map(path).unwrap_or("/")
}

/// Reads a group. In a container the mount often shows the own group as its root, whatever its path is.
fn usage(mount: &Path, group: &str, [now, limit]: [&str; 2]) -> Option<Usage> {
    let inside = mount.join(group.trim_start_matches('/'));
    let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    [inside.as_path(), mount].into_iter().find_map(|dir| {
        let limit = number(dir.join(limit)).filter(|limit| *limit < NO_LIMIT);
        Some(Usage { now: number(dir.join(now))?, limit: limit.unwrap_or_default() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 2] = ["now", "max"];

    fn mount(now: &str, max: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("now"), now).unwrap();
        fs::write(dir.path().join("max"), max).unwrap();
        dir
    }

    #[test]
    fn the_group_of_a_controller_is_found_among_those_of_version_1_and_2() {
        let groups = "4:memory:/a/b\n3:cpu,cpuacct:/\n0::/c:d\n";
        assert_eq!(
            (group(groups, "memory"), group(groups, "cpuacct"), group(groups, "")),
            ("/a/b", "/", "/c:d")
        );
        assert_eq!(group(groups, "pids"), "/");
    }

    #[test]
    fn a_group_outside_of_the_mount_is_the_mount_itself() {
        let mount = mount("5\n", "9\n");
        assert_eq!(usage(mount.path(), "/not/here", NAMES), Some(Usage { now: 5, limit: 9 }));
    }

    #[test]
    fn no_limit_is_zero_in_both_versions() {
        for none in ["max\n", "9223372036854771712\n"] {
            assert_eq!(usage(mount("5\n", none).path(), "/", NAMES), Some(Usage { now: 5, limit: 0 }));
        }
    }

    #[test]
    fn this_process_uses_memory() {
        let has_groups = Path::new(MOUNT).read_dir().is_ok_and(|mut groups| groups.next().is_some());
        assert!(!has_groups || memory().now > 0, "{:?}", memory());
    }
}
