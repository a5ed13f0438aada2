//! Why this machine lets nobody make a sandbox, in one sentence that names what to change.

use std::fs;
use std::io;

/// What the machine says about user namespaces; none where it has no such setting.
#[derive(Clone, Copy, Debug, Default)]
struct FileStat {
    /// `user.max_user_namespaces`.
    most: Option<u64>,
    /// Debian's `kernel.unprivileged_userns_clone`.
    for_users: Option<u64>,
    /// Ubuntu's `kernel.apparmor_restrict_unprivileged_userns`.
    apparmor: Option<u64>,
    /// We are in a container whose system calls are filtered.
    is_filtered: bool,
}

/// Adds what to change, if the machine denied something for which a user namespace should have been enough.
pub(super) fn explain(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::ENOSPC | libc::EUSERS | libc::EINVAL | libc::ENOSYS) => {
            io::Error::other(sentence(&error, FileStat::here()))
        }
        _ => error,
    }
}

impl FileStat {
    fn here() -> Self {
        let number = |name: &str| fs::read_to_string(format!("/proc/sys/{name}")).ok()?.trim().parse().ok();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self {
            most: number("user/max_user_namespaces"),
            for_users: number("kernel/unprivileged_userns_clone"),
            apparmor: number("kernel/apparmor_restrict_unprivileged_userns"),
            is_filtered: status.lines().any(|line| line == "Seccomp:\t2"),
        }
    }
}

fn sentence(error: &io::Error, facts: FileStat) -> String {
    let remedy = match facts {
        FileStat { most: None, .. } => {
            "its kernel has none (CONFIG_USER_NS): use another kernel, or a cluster"
        }
        FileStat { most: Some(0), .. } => "`sysctl user.max_user_namespaces=15000` allows them",
        FileStat { for_users: Some(0), .. } => "`sysctl kernel.unprivileged_userns_clone=1` allows them",
        FileStat { apparmor: Some(1..), .. } => {
            "give this program an AppArmor profile with the rule `userns,` (SECURITY.md has one), or allow them to \
             all with `sysctl kernel.apparmor_restrict_unprivileged_userns=0`"
        }
        FileStat { is_filtered: true, .. } => {
            "the container that this runs in keeps them back: run it with another seccomp profile and an unmasked \
             /proc, or use a cluster"
        }
        _ => "no setting is known that forbids them, so ask who runs this machine, or use a cluster",
    };
    format!("this machine does not let you make user namespaces ({error}): {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: FileStat =
        FileStat { most: Some(1000), for_users: Some(1), apparmor: Some(0), is_filtered: false };

    #[test]
    fn the_setting_that_forbids_user_namespaces_is_named() {
        let denied = io::Error::from_raw_os_error(libc::EPERM);
        for (facts, named) in [
            (FileStat { most: Some(0), ..FREE }, "user.max_user_namespaces=15000"),
            (FileStat { most: None, ..FREE }, "CONFIG_USER_NS"),
            (FileStat { for_users: Some(0), ..FREE }, "kernel.unprivileged_userns_clone=1"),
            (FileStat { apparmor: Some(1), ..FREE }, "AppArmor profile with the rule `userns,`"),
            (FileStat { is_filtered: true, ..FREE }, "another seccomp profile"),
            (FREE, "ask who runs this machine"),
        ] {
            let sentence = sentence(&denied, facts);
            assert!(sentence.contains(named), "{facts:?}: {sentence}");
            assert!(sentence.contains("Operation not permitted"), "{sentence}");
        }
    }

    #[test]
    fn what_has_another_cause_is_left_as_it_is() {
        let full = explain(io::Error::from_raw_os_error(libc::ENFILE)).to_string();
        assert!(!full.contains("namespaces"), "{full}");
    }
}
