//! Explains why this machine does not permit local sandboxes, and which setting to change.

use std::fs;
use std::io;

/// The machine's settings for user namespaces; `None` if a setting does not exist.
#[derive(Clone, Copy, Debug, Default)]
struct NamespaceSettings {
    /// `user.max_user_namespaces`.
    most: Option<u64>,
    /// Debian's `kernel.unprivileged_userns_clone`.
    for_users: Option<u64>,
    /// Ubuntu's `kernel.apparmor_restrict_unprivileged_userns`.
    apparmor: Option<u64>,
    /// Whether this process is in a container with a seccomp filter.
    is_filtered: bool,
}

/// Adds the setting to change, if the machine denied an operation for which a user namespace should suffice.
pub(super) fn explain(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::ENOSPC | libc::EUSERS | libc::EINVAL | libc::ENOSYS) => {
            io::Error::other(describe(&error, NamespaceSettings::read()))
        }
        _ => error,
    }
}

impl NamespaceSettings {
    fn read() -> Self {
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

fn describe(error: &io::Error, settings: NamespaceSettings) -> String {
    let remedy = match settings {
        NamespaceSettings { most: None, .. } => {
            "its kernel has none (CONFIG_USER_NS): use another kernel, or a cluster"
        }
        NamespaceSettings { most: Some(0), .. } => "`sysctl user.max_user_namespaces=15000` allows them",
        NamespaceSettings { for_users: Some(0), .. } => {
            "`sysctl kernel.unprivileged_userns_clone=1` allows them"
        }
        NamespaceSettings { apparmor: Some(1..), .. } => {
            "give this program an AppArmor profile with the rule `userns,` (SECURITY.md has one), or allow them to \
             all with `sysctl kernel.apparmor_restrict_unprivileged_userns=0`"
        }
        NamespaceSettings { is_filtered: true, .. } => {
            "the container that this runs in denies them: run it with another seccomp profile and an unmasked \
             /proc, or use a cluster"
        }
        _ => "the cause is unknown: ask this machine's administrator, or use a cluster",
    };
    format!("this machine does not let you make user namespaces ({error}): {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: NamespaceSettings =
        NamespaceSettings { most: Some(1000), for_users: Some(1), apparmor: Some(0), is_filtered: false };

    #[test]
    fn the_setting_that_forbids_user_namespaces_is_named() {
        let denied = io::Error::from_raw_os_error(libc::EPERM);
        for (settings, named) in [
            (NamespaceSettings { most: Some(0), ..FREE }, "user.max_user_namespaces=15000"),
            (NamespaceSettings { most: None, ..FREE }, "CONFIG_USER_NS"),
            (NamespaceSettings { for_users: Some(0), ..FREE }, "kernel.unprivileged_userns_clone=1"),
            (NamespaceSettings { apparmor: Some(1), ..FREE }, "AppArmor profile with the rule `userns,`"),
            (NamespaceSettings { is_filtered: true, ..FREE }, "another seccomp profile"),
            (FREE, "ask this machine's administrator"),
        ] {
            let describe = describe(&denied, settings);
            assert!(describe.contains(named), "{settings:?}: {describe}");
            assert!(describe.contains("Operation not permitted"), "{describe}");
        }
    }

    #[test]
    fn errors_with_other_causes_are_unchanged() {
        let full = explain(io::Error::from_raw_os_error(libc::ENFILE)).to_string();
        assert!(!full.contains("namespaces"), "{full}");
    }
}
