//! Denylist of system calls for local sandboxes.
//!
//! Namespaces and missing privileges isolate the sandbox. The filter reduces the kernel's attack surface behind them: it
//! denies calls that only help to escape, that namespaces do not isolate, and that past exploits have used.
//! Debuggers work: a process can be traced only by processes that can see it, and the guest itself by none.

use std::io;

use rustix::io::Errno;
use seccompiler::SeccompCmpOp::{Eq, MaskedEq, Ne};
use seccompiler::{BackendError, SeccompRule};

use crate::seccomp::{self, Denylist, always, argument, rule};

/// In a user namespace of its own a program has all capabilities, which exposes much more of the kernel to attacks.
/// Without capabilities it could make no other namespace.
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];
/// The time namespace, whose bit has another meaning for `clone`.
const TIME_NAMESPACE: i32 = 0x80;

/// Changes of the mount tree, which is complete.
const MOUNTS: [i64; 12] = [
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    OPEN_TREE_ATTR,
];
/// Newer calls, which some versions of libc do not define.
const OPEN_TREE_ATTR: i64 = 467;
const QUOTACTL_FD: i64 = 443;
/// Keyrings, which namespaces do not isolate.
const KEYS: [i64; 3] = [libc::SYS_keyctl, libc::SYS_add_key, libc::SYS_request_key];
/// Programs and counters in the kernel, and user-handled page faults, with which attackers control its timing: most
/// container escapes used one of them.
const KERNEL_INTERNALS: [i64; 3] = [libc::SYS_bpf, libc::SYS_perf_event_open, libc::SYS_userfaultfd];
/// Opening files by handle, which bypasses the sandbox's root.
const FILE_HANDLES: [i64; 1] = [libc::SYS_open_by_handle_at];
/// Some versions of libc do not define it.
const KEXEC_FILE_LOAD: i64 = if cfg!(target_arch = "aarch64") { 294 } else { 320 };
/// The machine as a whole: its kernel, clock, swap, accounting and log.
const MACHINE: [i64; 16] = [
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    KEXEC_FILE_LOAD,
    libc::SYS_reboot,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    QUOTACTL_FD,
    libc::SYS_fanotify_init,
    libc::SYS_syslog,
];

/// Requests that inject input into a terminal, or into a console of the machine.
const TERMINAL_INPUT: [i32; 2] = [0x5412, 0x541c];
/// Permitted socket families. Others, such as vsock and the kernel's ciphers, have no namespaces.
const FAMILIES: [i32; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Calls that appear as missing, because programs have fallbacks for them. `clone3` has its flags in memory, which
/// filters cannot read, and operations in an `io_uring` bypass the filter.
const REPORTED_MISSING: [i64; 4] =
    [libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// Denies these calls to the calling thread, and all that it starts, permanently.
pub(super) fn apply() -> io::Result<()> {
    let denied = seccomp::filter(denied().map_err(io::Error::other)?, Errno::PERM)?;
    let missing = seccomp::filter(always(&REPORTED_MISSING), Errno::NOSYS)?;
    seccomp::apply(&denied)?;
    Ok(seccomp::apply(&missing)?)
}

fn denied() -> Result<Denylist, BackendError> {
    let groups = [&MOUNTS[..], &KEYS, &KERNEL_INTERNALS, &FILE_HANDLES, &MACHINE, &[libc::SYS_setns]];
    let mut denied = always(&groups.concat());
    let new_namespace =
        |flags: &[i32]| flags.iter().map(|flag| has_bits(0, *flag)).collect::<Result<Vec<_>, _>>();
    denied.insert(libc::SYS_clone, new_namespace(&NAMESPACES)?);
    denied.insert(libc::SYS_unshare, new_namespace(&[&NAMESPACES[..], &[TIME_NAMESPACE]].concat())?);
    let terminal_input = TERMINAL_INPUT.map(|request| rule([argument(1, Eq, request)?]));
    denied.insert(libc::SYS_ioctl, terminal_input.into_iter().collect::<Result<_, _>>()?);
    let [a, b, c, d] = FAMILIES;
    let other = rule([argument(0, Ne, a)?, argument(0, Ne, b)?, argument(0, Ne, c)?, argument(0, Ne, d)?])?;
    denied.insert(libc::SYS_socket, vec![other]);
    // A process may set its own limits, but not those of others with the same user, such as the guest.
    denied.insert(libc::SYS_prlimit64, vec![rule([argument(0, Ne, 0)?])?]);
    Ok(denied)
}

/// A rule that matches if all bits of `flag` are set in an argument.
fn has_bits(index: u8, flag: i32) -> Result<SeccompRule, BackendError> {
    rule([argument(index, MaskedEq(u64::from(flag.cast_unsigned())), flag)?])
}
