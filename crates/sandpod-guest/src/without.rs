//! Abilities of the kernel that a guest is to do without.

use std::str::FromStr;

/// What the guest must not use although the kernel has it: for tests, and for operators whose kernel is
/// at fault. [`enforced`](sandpod_protocol::v1::Enforced) then says what does not hold.
///
/// ```
/// use sandpod_guest::Without;
///
/// let without: Without = "landlock,openat2".parse().unwrap();
/// assert!(without.landlock && without.openat2 && !without.seccomp);
/// assert!("landlok".parse::<Without>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an ability of its own")]
pub struct Without {
    /// Roots and ports of commands.
    pub landlock: bool,
    /// What Landlock knows of the network, as before Linux 6.7.
    pub landlock_network: bool,
    /// The network rules of commands.
    pub seccomp: bool,
    /// Paths resolved by the kernel in one step.
    pub openat2: bool,
}

impl FromStr for Without {
    type Err = String;

    fn from_str(names: &str) -> Result<Self, Self::Err> {
        let mut without = Self::default();
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match name {
                "landlock" => without.landlock = true,
                "landlock-network" => without.landlock_network = true,
                "seccomp" => without.seccomp = true,
                "openat2" => without.openat2 = true,
                _ => {
                    return Err(format!(
                        "{name:?} cannot be done without: name landlock, landlock-network, seccomp or openat2"
                    ));
                }
            }
        }
        Ok(without)
    }
}
