//! Restrictions of files and TCP ports by Landlock.
//!
//! A ruleset names the actions that it handles and the places where they are allowed; they are denied everywhere else. It
//! applies to the opened file, whatever its path was, so links and `..` do not matter. It does *not* cover
//! chmod, chown, times and stat, for which Landlock has no actions.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, NetPort, PathBeneath,
    Ruleset, RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetError,
};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::rules::{Network, Roots, Rules};
use crate::syscalls;

/// Devices that a shell and its tools need whatever the policy: `> /dev/null`, a password prompt, `/dev/stderr` in a
/// terminal, random numbers.
const DEVICES: [&str; 8] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
];
/// `ps`, `/dev/stdin` and language runtimes read it. The kernel itself denies access to memory, environment and files of
/// processes that are not under the command's restriction.
const PROCESSES: &str = "/proc";

/// The first Landlock version whose domain can isolate processes and restrict nothing else. The version before it
/// always denies moving files between directories.
pub(super) const ISOLATES_PROCESSES: ABI = ABI::V2;

/// Returns the newest Landlock version that both this kernel and the `landlock` crate support.
#[expect(unsafe_code, reason = "the system call has no safe interface")]
pub(super) fn version() -> ABI {
    const ASK_FOR_VERSION: libc::c_uint = 1;
    let (no_rules, no_size) = (std::ptr::null::<libc::c_void>(), 0_usize);
    // SAFETY: with this flag the kernel reads no memory.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, no_rules, no_size, ASK_FOR_VERSION) };
    i32::try_from(version).map_or(ABI::Unsupported, ABI::from)
}

/// Puts the calling thread, and all that it starts, into a domain that allows every action. The kernel lets no process in it
/// trace a process outside. Does nothing on a kernel without such domains.
pub(crate) fn enter_domain() -> io::Result<()> {
    if version() < ISOLATES_PROCESSES {
        return Ok(());
    }
    let domain: Option<OwnedFd> = allow_all().map_err(io::Error::other)?.into();
    rustix::thread::set_no_new_privs(true)?;
    Ok(domain.as_ref().map_or(Ok(()), restrict_self)?)
}

/// Builds the ruleset for the rules, as far as this version supports them, or `None` if none is needed.
pub(super) fn ruleset(abi: ABI, rules: &Rules) -> io::Result<Option<OwnedFd>> {
    let roots = rules.roots.as_ref().filter(|_| abi >= ABI::V1);
    let network = match &rules.network {
        Some(network @ (Network::None | Network::Ports { .. })) if abi >= ABI::V4 => Some(network),
        _ => None,
    };
    let is_network_held = matches!(rules.network, Some(Network::None | Network::Ports { .. }));
    let ruleset = match (roots, network) {
        (None, None) if is_network_held && abi >= ISOLATES_PROCESSES => allow_all(),
        (None, None) => return Ok(None),
        _ => build(abi, roots, network),
    };
    ruleset.map(Into::into).map_err(io::Error::other)
}

/// A ruleset that allows every action: processes under it are isolated and otherwise unrestricted.
fn allow_all() -> Result<RulesetCreated, RulesetError> {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let move_files = AccessFs::Refer;
    allow(ruleset.handle_access(move_files)?.create()?, ISOLATES_PROCESSES, Path::new("/"), move_files.into())
}

fn build(abi: ABI, roots: Option<&Roots>, network: Option<&Network>) -> Result<RulesetCreated, RulesetError> {
    let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    if let Some(roots) = roots {
        // Where everything may be read, the ruleset does not handle reading.
        let all = AccessFs::from_all(abi);
        let actions = if roots.readable.is_some() { all } else { AccessFs::from_write(abi) };
        ruleset = ruleset.handle_access(actions)?;
    }
    if network.is_some() {
        ruleset = ruleset.handle_access(AccessNet::from_all(abi))?;
    }
    let mut ruleset = ruleset.create()?;
    if let Some(roots) = roots {
        ruleset = allow_roots(ruleset, abi, roots)?;
    }
    match network {
        Some(Network::Ports { connect, listen }) => {
            let connect = connect.iter().map(|port| NetPort::new(*port, AccessNet::ConnectTcp));
            let listen = listen.iter().map(|port| NetPort::new(*port, AccessNet::BindTcp));
            ruleset.add_rules(connect.chain(listen).map(Ok::<_, RulesetError>))
        }
        _ => Ok(ruleset),
    }
}

fn allow_roots(mut ruleset: RulesetCreated, abi: ABI, roots: &Roots) -> Result<RulesetCreated, RulesetError> {
    let (read, write) = (AccessFs::from_read(abi), AccessFs::from_write(abi));
    let reads = roots.readable.as_ref().map_or(BitFlags::EMPTY, |_| read);
    let use_device = (reads | write) & AccessFs::from_file(abi) & !AccessFs::Execute;
    let look = reads & !AccessFs::Execute;
    for root in roots.readable.iter().flatten() {
        ruleset = allow(ruleset, abi, root, reads)?;
    }
    for root in &roots.writable {
        ruleset = allow(ruleset, abi, root, reads | write)?;
    }
    for device in DEVICES {
        ruleset = allow(ruleset, abi, Path::new(device), use_device)?;
    }
    allow(ruleset, abi, Path::new(PROCESSES), look)
}

/// Allows actions below a path, if it exists. Follows no link: those in the policy's paths were resolved when it
/// was bound.
fn allow(
    ruleset: RulesetCreated,
    abi: ABI,
    path: &Path,
    actions: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
    let Ok(root) = opened else { return Ok(ruleset) };
    let is_dir = rustix::fs::fstat(&root)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
    let actions = if is_dir { actions } else { actions & AccessFs::from_file(abi) };
    if actions.is_empty() { Ok(ruleset) } else { ruleset.add_rule(PathBeneath::new(root, actions)) }
}

/// Applies a ruleset to the calling thread, permanently.
#[expect(unsafe_code, reason = "the safe interface owns the ruleset and allocates")]
pub(super) fn restrict_self(ruleset: &OwnedFd) -> Result<(), Errno> {
    let ruleset = usize::try_from(ruleset.as_raw_fd()).map_err(|_| Errno::BADF)?;
    // SAFETY: the call takes an open descriptor and no memory.
    unsafe { syscalls::call(libc::SYS_landlock_restrict_self, [ruleset, 0, 0, 0]) }.map(drop)
}
