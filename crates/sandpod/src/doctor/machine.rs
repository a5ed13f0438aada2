//! Checks this machine for local mode: [`Trials`] find what this user can do here, and the kernel's files the reasons.

use std::fs;
use std::path::Path;

use sandpod_client::Enforced;

use super::container::Container;
use super::sandbox::examine_sandbox;
use super::trials::Trials;
use super::{Finding, Verdict};
use crate::Provider;

/// Checks this machine for local mode. With `probe` it creates a sandbox of `provider`, which settles what cannot be tried
/// otherwise.
pub async fn examine_machine(provider: &Provider, probe: bool, findings: &mut impl Extend<Finding>) {
    let mut of_sandbox = Vec::new();
    let enforced = if probe { examine_sandbox(provider, &mut of_sandbox).await } else { None };
    let trials = Trials::run();
    findings.extend(examine(Path::new("/"), &trials, enforced));
    let has_failed = of_sandbox.iter().any(|finding| finding.verdict == Verdict::Bad);
    let allows_sandboxes = match &trials.namespaces {
        Err(_) => Some(false),
        // The reason may be another one, such as a full disk.
        Ok(()) => (!has_failed).then_some(true),
    };
    let container = Container::of_process(Path::new("/"));
    findings.extend(container.map(|container| container.finding(allows_sandboxes)));
    findings.extend(of_sandbox);
}

/// Judges the kernel's files below `root` and the results of trials. `enforced` is what a guest on this machine enforces.
fn examine(root: &Path, trials: &Trials, enforced: Option<Enforced>) -> Vec<Finding> {
    vec![
        namespaces(root, trials),
        apparmor(root, trials),
        cgroups(root, trials),
        landlock(root, enforced),
        seccomp(root),
    ]
}

fn read(root: &Path, path: &str) -> Option<String> {
    fs::read_to_string(root.join(path)).ok().map(|text| text.trim().to_owned())
}

fn namespaces(root: &Path, trials: &Trials) -> Finding {
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
        Some(most) => match &trials.namespaces {
            Ok(()) => Finding::good(CHECK, format!("this user can make them, up to {most}")),
            Err(cause) => Finding::bad(
                CHECK,
                format!("up to {most} may be made, but this user cannot make one here: {cause}"),
                "Leave the chroot or the container that does not allow them, or use --mode raw.",
            ),
        },
    }
}

/// Checks whether `AppArmor` restricts unprivileged user namespaces. This also affects root, because the guest drops
/// its privileges first.
fn apparmor(root: &Path, trials: &Trials) -> Finding {
    const CHECK: &str = "AppArmor";
    const RESTRICTION: &str = "proc/sys/kernel/apparmor_restrict_unprivileged_userns";
    if read(root, RESTRICTION).as_deref() != Some("1") {
        return Finding::good(CHECK, "does not restrict user namespaces");
    }
    if trials.namespaces.is_ok() {
        return Finding::good(CHECK, "restricts user namespaces, but not those of this program");
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

fn cgroups(root: &Path, trials: &Trials) -> Finding {
    const CHECK: &str = "cgroups";
    let version = if root.join("sys/fs/cgroup/cgroup.controllers").exists() {
        "version 2"
    } else if root.join("sys/fs/cgroup/memory").exists() {
        "version 1"
    } else {
        return Finding::unsure(
            CHECK,
            "none are mounted: memory and processors have no limit",
            "Mount them: sudo mount -t cgroup2 none /sys/fs/cgroup",
        );
    };
    if trials.memory_limit {
        return Finding::good(CHECK, format!("{version}: this user can limit memory"));
    }
    Finding::unsure(
        CHECK,
        format!("{version}, but this user cannot limit memory with them: memory_limit has no effect"),
        "Run sandpod as root, or in a part of the tree that is delegated to this user: \
         systemd-run --user --scope --property=Delegate=yes sandpod …",
    )
}

fn landlock(root: &Path, enforced: Option<Enforced>) -> Finding {
    const CHECK: &str = "Landlock";
    if enforced.is_some_and(|enforced| enforced.files) {
        return Finding::good(CHECK, "the guest of the probe sandbox can enforce policies of roots");
    }
    match read(root, "sys/kernel/security/lsm") {
        Some(modules) if modules.split(',').any(|name| name == "landlock") => match enforced {
            None => Finding::good(CHECK, "on"),
            Some(_) => Finding::unsure(
                CHECK,
                "on, but the guest of the probe sandbox cannot use it",
                "Policies of roots and ports need it: see whether a container or a seccomp filter denies it.",
            ),
        },
        Some(modules) => Finding::unsure(
            CHECK,
            format!("off: the kernel has {modules}"),
            "Policies of roots and ports need it: add landlock to the boot parameter lsm=.",
        ),
        None if enforced.is_some() => Finding::unsure(
            CHECK,
            "the guest of the probe sandbox cannot use it",
            "Policies of roots and ports need it: use Linux 5.13 or newer, and add landlock to the boot parameter lsm=.",
        ),
        None => Finding::unsure(
            CHECK,
            "can't be seen: securityfs is not mounted",
            "Mount it (sudo mount -t securityfs none /sys/kernel/security).",
        )
        .until_made(),
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
    use std::io;

    use super::super::{fix, next};
    use super::*;

    /// The trials of a user who can do everything.
    fn able() -> Trials {
        Trials { namespaces: Ok(()), memory_limit: true }
    }

    fn unable() -> Trials {
        Trials { namespaces: Err(io::ErrorKind::PermissionDenied.into()), memory_limit: false }
    }

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
        let findings = examine(machine().path(), &able(), None);
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
            let findings = examine(root.path(), &able(), None);
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
        let without = apparmor(root.path(), &unable());
        assert!(without.found.ends_with("those of root too"), "{without:?}");
        assert!(fix(without).contains("kernel.apparmor_restrict_unprivileged_userns=0"));

        set("proc/self/attr/apparmor/current", "sandpod (unconfined)\n");
        let with = apparmor(root.path(), &unable());
        assert!(with.found.contains("this program's profile, sandpod (unconfined), "), "{with:?}");
        assert!(next(with).ends_with("Creating a sandbox shows it."));
        assert_eq!(apparmor(root.path(), &able()).verdict, Verdict::Good);
    }

    #[test]
    fn files_that_allow_something_do_not_hide_that_it_fails() {
        let findings = examine(machine().path(), &unable(), None);
        let of = |check: &str| findings.iter().find(|finding| finding.check == check).unwrap().clone();
        let namespaces = of("user namespaces");
        assert!(
            namespaces.found.starts_with("up to 15000 may be made, but this user cannot"),
            "{namespaces:?}"
        );
        assert!(fix(namespaces).contains("chroot"));
        let cgroups = of("cgroups");
        assert!(cgroups.found.contains("memory_limit has no effect"), "{cgroups:?}");
        assert!(next(cgroups).contains("systemd-run --user"));
    }

    #[test]
    fn landlock_is_settled_by_the_probe_sandbox() {
        let root = machine();
        let enforced = |files| {
            let mut enforced = Enforced::default();
            enforced.files = files;
            landlock(root.path(), Some(enforced))
        };
        assert!(next(enforced(false)).contains("denies it"));
        fs::remove_file(root.path().join("sys/kernel/security/lsm")).unwrap();
        assert_eq!(enforced(true).verdict, Verdict::Good);
        assert!(next(enforced(false)).contains("Linux 5.13"));
        assert!(landlock(root.path(), None).needs_sandbox);
    }
}
