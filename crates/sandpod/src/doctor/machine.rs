//! What local sandboxes need of this machine.

use std::fs;
use std::path::Path;

use super::Finding;

/// Looks at the kernel's files below `root`, which is `/` but in tests.
#[must_use]
pub fn examine_machine(root: &Path) -> Vec<Finding> {
    let root_user = cfg!(target_os = "linux") && rustix::process::geteuid().is_root();
    vec![namespaces(root), apparmor(root, root_user), cgroups(root), landlock(root), seccomp(root)]
}

fn read(root: &Path, path: &str) -> Option<String> {
    fs::read_to_string(root.join(path)).ok().map(|text| text.trim().to_owned())
}

fn namespaces(root: &Path) -> Finding {
    const CHECK: &str = "user namespaces";
    let most = read(root, "proc/sys/user/max_user_namespaces");
    match most.as_deref() {
        None => Finding::bad(
            CHECK,
            "this kernel has none",
            "Use a Linux kernel with CONFIG_USER_NS, or --mode raw.",
        ),
        Some("0") => Finding::bad(
            CHECK,
            "none may be made",
            "Allow them: sudo sysctl user.max_user_namespaces=15000, and keep it in /etc/sysctl.d.",
        ),
        Some(_) if read(root, "proc/sys/kernel/unprivileged_userns_clone").as_deref() == Some("0") => {
            Finding::bad(
                CHECK,
                "only root may make them",
                "Allow them: sudo sysctl kernel.unprivileged_userns_clone=1, and keep it in /etc/sysctl.d.",
            )
        }
        Some(most) => Finding::good(CHECK, format!("allowed, up to {most}")),
    }
}

fn apparmor(root: &Path, is_root: bool) -> Finding {
    const CHECK: &str = "AppArmor";
    let restricts =
        read(root, "proc/sys/kernel/apparmor_restrict_unprivileged_userns").as_deref() == Some("1");
    if restricts && !is_root {
        return Finding::bad(
            CHECK,
            "it keeps programs without a profile from using user namespaces",
            "Give sandpod a profile with the rule userns in /etc/apparmor.d, or allow all programs: sudo sysctl \
             kernel.apparmor_restrict_unprivileged_userns=0",
        );
    }
    Finding::good(
        CHECK,
        if restricts { "restricts others than root" } else { "does not restrict user namespaces" },
    )
}

fn cgroups(root: &Path) -> Finding {
    const CHECK: &str = "cgroups";
    if root.join("sys/fs/cgroup/cgroup.controllers").exists() {
        return Finding::good(CHECK, "version 2");
    }
    if root.join("sys/fs/cgroup/memory").exists() {
        return Finding::good(CHECK, "version 1");
    }
    Finding::unsure(
        CHECK,
        "none are mounted: memory and processes have no limit",
        "Mount them: sudo mount -t cgroup2 none /sys/fs/cgroup",
    )
}

fn landlock(root: &Path) -> Finding {
    const CHECK: &str = "Landlock";
    match read(root, "sys/kernel/security/lsm") {
        Some(modules) if modules.split(',').any(|name| name == "landlock") => Finding::good(CHECK, "on"),
        Some(modules) => Finding::unsure(
            CHECK,
            format!("off: the kernel has {modules}"),
            "Policies of roots and ports need it: add landlock to the boot parameter lsm=.",
        ),
        None => Finding::unsure(
            CHECK,
            "can't be seen: securityfs is not mounted",
            "Look at what is enforced below, or mount it: sudo mount -t securityfs none /sys/kernel/security",
        ),
    }
}

fn seccomp(root: &Path) -> Finding {
    const CHECK: &str = "seccomp";
    match read(root, "proc/sys/kernel/seccomp/actions_avail") {
        Some(actions) if actions.contains("errno") => Finding::good(CHECK, "filters can be set"),
        _ => Finding::unsure(
            CHECK,
            "filters can't be set",
            "Policies without network need it: use a kernel with CONFIG_SECCOMP_FILTER.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    /// A machine where all is well.
    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("proc/sys/user/max_user_namespaces", "15000\n"),
            ("proc/sys/kernel/unprivileged_userns_clone", "1\n"),
            ("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "0\n"),
            ("sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n"),
            ("sys/kernel/security/lsm", "capability,landlock,yama\n"),
            ("proc/sys/kernel/seccomp/actions_avail", "kill_process errno allow\n"),
        ] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn a_machine_that_is_fit_has_nothing_to_fix() {
        let findings = examine_machine(machine().path());
        assert!(
            findings.iter().all(|finding| finding.verdict == Verdict::Good && finding.fix.is_none()),
            "{findings:?}"
        );
    }

    #[test]
    fn each_thing_that_is_broken_is_found_with_its_fix() {
        for (path, text, verdict, fix) in [
            ("proc/sys/user/max_user_namespaces", Some("0"), Verdict::Bad, "user.max_user_namespaces=15000"),
            ("proc/sys/user/max_user_namespaces", None, Verdict::Bad, "CONFIG_USER_NS"),
            (
                "proc/sys/kernel/unprivileged_userns_clone",
                Some("0"),
                Verdict::Bad,
                "unprivileged_userns_clone=1",
            ),
            ("sys/fs/cgroup/cgroup.controllers", None, Verdict::Unsure, "mount -t cgroup2"),
            ("sys/kernel/security/lsm", Some("yama"), Verdict::Unsure, "boot parameter lsm="),
            ("sys/kernel/security/lsm", None, Verdict::Unsure, "mount -t securityfs"),
            ("proc/sys/kernel/seccomp/actions_avail", None, Verdict::Unsure, "CONFIG_SECCOMP_FILTER"),
        ] {
            let root = machine();
            let broken = root.path().join(path);
            match text {
                Some(text) => fs::write(broken, text).unwrap(),
                None => fs::remove_file(broken).unwrap(),
            }
            let findings = examine_machine(root.path());
            let wrong: Vec<_> = findings.iter().filter(|finding| finding.verdict != Verdict::Good).collect();
            assert_eq!((wrong.len(), wrong[0].verdict), (1, verdict), "{findings:?}");
            assert!(wrong[0].fix.as_ref().is_some_and(|said| said.contains(fix)), "{findings:?}");
        }
    }

    #[test]
    fn apparmor_matters_to_those_who_are_not_root() {
        let root = machine();
        fs::write(root.path().join("proc/sys/kernel/apparmor_restrict_unprivileged_userns"), "1").unwrap();
        assert_eq!(apparmor(root.path(), true).verdict, Verdict::Good);
        let finding = apparmor(root.path(), false);
        assert_eq!(finding.verdict, Verdict::Bad);
        assert!(finding.fix.unwrap().contains("/etc/apparmor.d"));
    }
}
