//! Kernel features that a guest can be configured not to use.

use std::str::FromStr;

/// Features that the guest must not use although the kernel has them: for tests, and for kernels with faults.
/// [`enforced`](sandpod_protocol::v1::Enforced) reports what is not enforced then.
///
/// ```
/// use sandpod_guest::DisabledKernelFeatures;
///
/// let disabled: DisabledKernelFeatures = "landlock,openat2".parse().unwrap();
/// assert!(disabled.landlock && disabled.openat2 && !disabled.seccomp);
/// assert!("landlok".parse::<DisabledKernelFeatures>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an ability of its own")]
pub struct DisabledKernelFeatures {
    /// Landlock: roots and ports of commands.
    pub landlock: bool,
    /// Landlock's network rules, as before Linux 6.7.
    pub landlock_network: bool,
    /// Seccomp: network rules of commands.
    pub seccomp: bool,
    /// Atomic path resolution in the kernel.
    pub openat2: bool,
}

impl FromStr for DisabledKernelFeatures {
    type Err = String;

    fn from_str(names: &str) -> Result<Self, Self::Err> {
        let mut disabled = Self::default();
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match name {
                "landlock" => disabled.landlock = true,
                "landlock-network" => disabled.landlock_network = true,
                "seccomp" => disabled.seccomp = true,
                "openat2" => disabled.openat2 = true,
                _ => {
                    return Err(format!(
                        "{name:?} is not a kernel feature that can be disabled: name landlock, landlock-network, seccomp or openat2"
                    ));
                }
            }
        }
        Ok(disabled)
    }
}
