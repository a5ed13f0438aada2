//! System calls that nothing in a local sandbox can make.
//!
//! Its namespaces and its lack of privileges are the walls. The filter makes less of the kernel reachable from behind
//! them: what only helps to get out, what namespaces do not divide, and what has been the way out before.
//! Debuggers work: a process can be traced only by those that can see it, and the guest itself by nobody.

use std::io;

use rustix::io::Errno;
use seccompiler::SeccompCmpOp::{Eq, MaskedEq, Ne};
use seccompiler::{BackendError, SeccompRule};

use crate::seccomp::{self, Denylist, always, argument, rule};

/// With a user namespace of its own a program has every privilege in it, and with them much more of the kernel
/// is open to attack. Without those it could make no other namespace.
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];
/// The time namespace, which has a bit that means something else to `clone`.
const TIME_NAMESPACE: i32 = 0x80;

/// What the file system looks like is settled.
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
/// Those that have come after, and are not known by every libc.
const OPEN_TREE_ATTR: i64 = 467;
const QUOTACTL_FD: i64 = 443;
/// Keys are the machine's, whatever namespace asks for them.
const KEYS: [i64; 3] = [libc::SYS_keyctl, libc::SYS_add_key, libc::SYS_request_key];
/// Programs and counters in the kernel itself, and faults that stop it where an attacker wants: most ways out of
/// containers led through one of them.
const INSIDE_THE_KERNEL: [i64; 3] = [libc::SYS_bpf, libc::SYS_perf_event_open, libc::SYS_userfaultfd];
/// Files by their numbers instead of their names: it gets past what the root shows.
const PAST_THE_ROOT: [i64; 1] = [libc::SYS_open_by_handle_at];
/// Not every libc knows it.
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

/// Types into a terminal as if somebody sat at it, or into a console of the machine.
const TERMINAL_INPUT: [i32; 2] = [0x5412, 0x541c];
/// Others, such as those of virtual machines (vsock) and of the kernel's ciphers, have no namespaces.
const FAMILIES: [i32; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Programs ask whether these are there and do without them. `clone3` has its flags in memory, where no filter
/// sees them, and what is queued in an `io_uring` is done without asking the filter.
const MISSING: [i64; 4] =
    [libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// Gives the calling thread, and all that it starts, these calls up for good.
pub(super) fn give_up() -> io::Result<()> {
    let denied = seccomp::filter(denied().map_err(io::Error::other)?, Errno::PERM)?;
    let missing = seccomp::filter(always(&MISSING), Errno::NOSYS)?;
    seccomp::apply(&denied)?;
    Ok(seccomp::apply(&missing)?)
}

fn denied() -> Result<Denylist, BackendError> {
    let groups = [&MOUNTS[..], &KEYS, &INSIDE_THE_KERNEL, &PAST_THE_ROOT, &MACHINE, &[libc::SYS_setns]];
    let mut denied = always(&groups.concat());
    let new_namespace = |flags: &[i32]| flags.iter().map(|flag| has(0, *flag)).collect::<Result<Vec<_>, _>>();
    denied.insert(libc::SYS_clone, new_namespace(&NAMESPACES)?);
    denied.insert(libc::SYS_unshare, new_namespace(&[&NAMESPACES[..], &[TIME_NAMESPACE]].concat())?);
    let typing = TERMINAL_INPUT.map(|request| rule([argument(1, Eq, request)?]));
    denied.insert(libc::SYS_ioctl, typing.into_iter().collect::<Result<_, _>>()?);
    let [a, b, c, d] = FAMILIES;
    let other = rule([argument(0, Ne, a)?, argument(0, Ne, b)?, argument(0, Ne, c)?, argument(0, Ne, d)?])?;
    denied.insert(libc::SYS_socket, vec![other]);
    // What a process may use is its own matter, and not that of others with its user, as the guest is.
    denied.insert(libc::SYS_prlimit64, vec![rule([argument(0, Ne, 0)?])?]);
    Ok(denied)
}

/// Matches if all bits of `flag` are set in an argument.
fn has(index: u8, flag: i32) -> Result<SeccompRule, BackendError> {
    rule([argument(index, MaskedEq(u64::from(flag.cast_unsigned())), flag)?])
}
