//! Checks this machine for local mode.

use std::fs;
use std::path::Path;

use super::Finding;

/// Checks the kernel's files below `root`, which is `/` except in tests.
#[must_use]
pub fn examine_machine(root: &Path) -> Vec<Finding> {
    vec![namespaces(root), apparmor(root), cgroups(root), landlock(root), seccomp(root)]
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

/// Checks whether `AppArmor` restricts unprivileged user namespaces. This also affects root, because the guest drops
/// its privileges first.
fn apparmor(root: &Path) -> Finding {
    const CHECK: &str = "AppArmor";
    const RESTRICTION: &str = "proc/sys/kernel/apparmor_restrict_unprivileged_userns";
    if read(root, RESTRICTION).as_deref() != Some("1") {
        return Finding::good(CHECK, "does not restrict user namespaces");
    }
    match read(root, "proc/self/attr/apparmor/current").filter(|profile| profile != "unconfined") {
        Some(profile) => Finding::unsure(
            CHECK,
            format!("it depends on this program's profile, {profile}, whether it may use user namespaces"),
            "The rule userns has to be in the profile. Creating a sandbox shows it.",
        )
        .until_made(),
        None => Finding::bad(
            CHECK,
            "it keeps programs without a profile from using user namespaces, those of root too",
            "Give sandpod a profile with the rule userns in /etc/apparmor.d, or allow all programs: sudo sysctl \
             kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    }
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
    use super::super::{Verdict, fix, next};
    use super::*;

    /// Creates the files of a machine without problems.
    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("proc/sys/user/max_user_namespaces", "15000\n"),
            ("proc/sys/kernel/unprivileged_userns_clone", "1\n"),
            ("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "0\n"),
            ("proc/self/attr/apparmor/current", "unconfined\n"),
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
    fn suitable_machine_has_nothing_to_fix() {
        let findings = examine_machine(machine().path());
        assert!(
            findings.iter().all(|finding| finding.verdict == Verdict::Good && finding.fix.is_none()),
            "{findings:?}"
        );
    }

    #[test]
    fn each_problem_is_reported_with_its_fix() {
        for (path, text, verdict, fix) in [
            ("proc/sys/user/max_user_namespaces", Some("0"), Verdict::Bad, "user.max_user_namespaces=15000"),
            ("proc/sys/user/max_user_namespaces", None, Verdict::Bad, "CONFIG_USER_NS"),
            (
                "proc/sys/kernel/unprivileged_userns_clone",
                Some("0"),
                Verdict::Bad,
                "unprivileged_userns_clone=1",
            ),
            (
                "proc/sys/kernel/apparmor_restrict_unprivileged_userns",
                Some("1"),
                Verdict::Bad,
                "a profile with the rule userns in /etc/apparmor.d",
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
            assert!(wrong[0].fix.as_ref().is_some_and(|text| text.contains(fix)), "{findings:?}");
        }
    }

    #[test]
    fn apparmor_restriction_requires_a_profile_also_for_root() {
        let root = machine();
        let set = |path: &str, text: &str| fs::write(root.path().join(path), text).unwrap();
        set("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1");
        let without = apparmor(root.path());
        assert!(without.found.ends_with("those of root too"), "{without:?}");
        assert!(fix(without).contains("kernel.apparmor_restrict_unprivileged_userns=0"));

        set("proc/self/attr/apparmor/current", "sandpod (unconfined)\n");
        let with = apparmor(root.path());
        assert!(with.found.contains("this program's profile, sandpod (unconfined), "), "{with:?}");
        assert!(next(with).ends_with("Creating a sandbox shows it."));
    }
}
