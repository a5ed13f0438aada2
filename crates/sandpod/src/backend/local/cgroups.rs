//! The cgroups of a local sandbox. They are created if this process has permission, and removed with the sandbox.
//!
//! They are below the cgroup of the creating process (version 1), or beside it (version 2, where a cgroup with
//! processes can have no children). This needs root, or a delegated part of the tree, as systemd gives to users.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Access, access};

use super::limits::Limits;

/// The root of the cgroup file systems.
pub(super) const ROOT: &str = "/sys/fs/cgroup";
/// The period of CPU quotas, in microseconds.
const PERIOD: u64 = 100_000;
/// The limit of a cgroup that is created to see whether it can be.
const PROBE_MEMORY: u64 = 64 << 20;
/// The longest time that the last process of a cgroup may take to leave it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Cgroups with their controllers' names. Version 2 has one for all, without a name.
#[derive(Clone, Debug, Default)]
pub(super) struct Cgroups(Vec<Cgroup>);

#[derive(Clone, Debug, Eq, PartialEq)]
struct Cgroup {
    controller: &'static str,
    dir: PathBuf,
    /// Files and their contents.
    settings: Vec<(&'static str, String)>,
}

impl Cgroups {
    /// Plans the cgroups that the limits need, as far as they can be created below `root`. `membership` is
    /// `/proc/self/cgroup`.
    pub(super) fn plan(root: &Path, membership: &str, name: &str, limits: &Limits) -> Self {
        let second = second_version(root, membership, name, limits);
        Self(if second.is_empty() { first_version(root, membership, name, limits) } else { second })
    }

    /// Creates the cgroups. Those that cannot be created are skipped.
    pub(super) fn make(&mut self) {
        self.0.retain(|cgroup| {
            let made = cgroup.make();
            if made.is_err() {
                let _ = fs::remove_dir(&cgroup.dir);
            }
            made.is_ok()
        });
    }

    /// Moves a process into the cgroups. Its later children inherit them.
    pub(super) fn admit(&self, process: u32) -> io::Result<()> {
        self.0.iter().try_for_each(|cgroup| fs::write(cgroup.dir.join("cgroup.procs"), process.to_string()))
    }

    /// Reports whether one of the cgroups has that controller.
    pub(super) fn hold(&self, controller: &str) -> bool {
        let file = format!("{controller}.");
        let sets = |cgroup: &Cgroup| cgroup.settings.iter().any(|(name, _)| name.starts_with(&file));
        self.0.iter().any(sets)
    }

    /// Returns a line for each cgroup: the controller and the directory.
    pub(super) fn lines(&self) -> String {
        let line = |cgroup: &Cgroup| format!("{}={}\n", cgroup.controller, cgroup.dir.display());
        self.0.iter().map(line).collect()
    }
}

/// Reports whether this process can create a cgroup with a memory limit, by creating and removing one.
pub(crate) fn can_limit_memory() -> bool {
    let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let name = format!("sandpod-doctor-{}", std::process::id());
    let limits = Limits { memory: Some(PROBE_MEMORY), ..Limits::default() };
    let mut cgroups = Cgroups::plan(Path::new(ROOT), &membership, &name, &limits);
    cgroups.make();
    remove(&cgroups.lines());
    cgroups.hold("memory")
}

impl Cgroup {
    fn make(&self) -> io::Result<()> {
        fs::create_dir(&self.dir)?;
        self.settings.iter().try_for_each(|(file, value)| fs::write(self.dir.join(file), value))
    }
}

/// Waits until the cgroups in `lines` are empty and removes them.
pub(super) fn remove(lines: &str) {
    for (_, dir) in lines.lines().filter_map(|line| line.split_once('=')) {
        // Exited processes leave a moment later, without a notification.
        let pause = Duration::from_millis(5);
        for _ in 0..PATIENCE.as_millis() / pause.as_millis() {
            match fs::remove_dir(dir) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => std::thread::sleep(pause),
                _ => break,
            }
        }
    }
}

fn second_version(root: &Path, membership: &str, name: &str, limits: &Limits) -> Vec<Cgroup> {
    let Some(own) = path_in(membership, "").map(|path| root.join(path)) else { return Vec::new() };
    let mut settings = Vec::new();
    settings.extend(limits.memory.map(|bytes| ("memory.max", bytes.to_string())));
    settings.extend(limits.cpu.map(|millis| ("cpu.max", format!("{} {PERIOD}", quota(millis)))));
    let offers = |parent: &&Path| {
        let control = fs::read_to_string(parent.join("cgroup.subtree_control")).unwrap_or_default();
        let has = |file: &str| control.split_whitespace().any(|name| file.starts_with(&format!("{name}.")));
        settings.iter().all(|(file, _)| has(file)) && is_ours(parent) && is_ours(&parent.join("cgroup.procs"))
    };
    let parent = own
        .parent()
        .filter(|parent| parent.starts_with(root))
        .into_iter()
        .chain([own.as_path()])
        .find(offers);
    match parent {
        Some(parent) if !settings.is_empty() => {
            vec![Cgroup { controller: "", dir: parent.join(name), settings }]
        }
        _ => Vec::new(),
    }
}

fn first_version(root: &Path, membership: &str, name: &str, limits: &Limits) -> Vec<Cgroup> {
    let memory = limits.memory.map(|bytes| ("memory", vec![("memory.limit_in_bytes", bytes.to_string())]));
    let cpu = limits.cpu.map(|millis| {
        let period = ("cpu.cfs_period_us", PERIOD.to_string());
        ("cpu", vec![period, ("cpu.cfs_quota_us", quota(millis).to_string())])
    });
    let cgroup = |(controller, settings)| {
        let parent = root.join(controller).join(path_in(membership, controller)?);
        is_ours(&parent).then(|| Cgroup { controller, dir: parent.join(name), settings })
    };
    [memory, cpu].into_iter().flatten().filter_map(cgroup).collect()
}

fn quota(millis: u32) -> u64 {
    u64::from(millis) * PERIOD / 1000
}

fn is_ours(path: &Path) -> bool {
    access(path, Access::WRITE_OK).is_ok()
}

/// Returns the path of a controller's cgroup below its root. The empty name is version 2's.
fn path_in<'a>(membership: &'a str, controller: &str) -> Option<&'a str> {
    membership.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then(|| path.trim_start_matches('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { memory: Some(1 << 30), cpu: Some(1500), tasks: 0 };

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    fn planned(root: &tempfile::TempDir, membership: &str) -> Vec<(String, Vec<(&'static str, String)>)> {
        let relative = |cgroup: Cgroup| {
            let dir = cgroup.dir.strip_prefix(root.path()).unwrap().display().to_string();
            (dir, cgroup.settings)
        };
        Cgroups::plan(root.path(), membership, "new", &LIMITS).0.into_iter().map(relative).collect()
    }

    #[test]
    fn version_2_gets_a_sibling_cgroup_if_both_controllers_are_delegated() {
        let root = tree(&[
            ("app.slice/cgroup.subtree_control", "cpu memory pids\n"),
            ("app.slice/cgroup.procs", ""),
            ("app.slice/terminal.scope/cgroup.subtree_control", "\n"),
        ]);
        let settings = vec![("memory.max", "1073741824".to_owned()), ("cpu.max", "150000 100000".to_owned())];
        let planned = planned(&root, "0::/app.slice/terminal.scope\n");
        assert_eq!(planned, [("app.slice/new".to_owned(), settings)]);
    }

    #[test]
    fn version_2_gets_no_cgroup_if_a_controller_is_not_delegated() {
        let root = tree(&[("app.slice/cgroup.subtree_control", "pids\n"), ("app.slice/cgroup.procs", "")]);
        assert_eq!(planned(&root, "0::/app.slice/terminal.scope\n"), []);
    }

    #[test]
    fn version_1_gets_a_cgroup_below_our_own_for_each_controller() {
        let root = tree(&[("memory/a/cgroup.procs", ""), ("cpu/cgroup.procs", "")]);
        let cpu = vec![("cpu.cfs_period_us", "100000".to_owned()), ("cpu.cfs_quota_us", "150000".to_owned())];
        let memory = vec![("memory.limit_in_bytes", "1073741824".to_owned())];
        let planned = planned(&root, "4:memory:/a\n2:cpu,cpuacct:/\n0::/\n");
        assert_eq!(planned, [("memory/a/new".to_owned(), memory), ("cpu/new".to_owned(), cpu)]);
    }

    #[test]
    fn limits_without_a_cgroup_are_reported_as_not_enforced() {
        let nothing = tree(&[]);
        let mut cgroups = Cgroups::plan(nothing.path(), "0::/\n", "new", &LIMITS);
        cgroups.make();
        let held = LIMITS.held(&cgroups);
        assert!(held["sandpod.dev/limit-memory"].starts_with("none: 1073741824 bytes"), "{held:?}");
        assert_eq!(
            (held["sandpod.dev/limit-tasks"].as_str(), held["sandpod.dev/limit-disk"].as_str()),
            ("none", "none")
        );
    }
}
