//! Restricts the first process of a container, and with it every command, before it starts anything.
//!
//! Commands run as the guest's user and could attack it in two ways. With `prlimit` a command could limit the guest's CPU
//! time until the kernel kills it, which no signal from inside can do: a [`filter`] refuses to set the limits of other
//! processes. And a command could trace a process that the container runtime starts for a client before that process
//! becomes non-dumpable: a Landlock domain, which contains the sandbox and no process from outside, prevents that
//! and still lets commands trace each other.

use std::io;

use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use seccompiler::{BpfProgram, sock_filter};

use crate::disabled_kernel_features::DisabledKernelFeatures;
use crate::policy;
use crate::seccomp::{self, OTHER_NUMBERS};

/// The architectures of a 64-bit kernel's programs, with the number of `prlimit64` in each.
const NATIVE: Calls = if cfg!(target_arch = "aarch64") {
    Calls { arch: 0xc000_00b7, prlimit64: 261 }
} else {
    Calls { arch: 0xc000_003e, prlimit64: 302 }
};
const OF_32_BITS: Calls = if cfg!(target_arch = "aarch64") {
    Calls { arch: 0x4000_0028, prlimit64: 369 }
} else {
    Calls { arch: 0x4000_0003, prlimit64: 340 }
};

struct Calls {
    arch: u32,
    prlimit64: u32,
}

/// Applies all restrictions that are possible here. Call it while the process has one thread.
pub(crate) fn enter(disabled: DisabledKernelFeatures) -> io::Result<()> {
    if !disabled.seccomp {
        optional(seccomp::apply(&filter()))?;
    }
    // A process with this capability can escape anyway, and a domain would keep it from mounting.
    let capabilities = rustix::thread::capabilities(None)?.effective;
    if !disabled.landlock && !capabilities.contains(CapabilitySet::SYS_ADMIN) {
        policy::enter_domain()?;
    }
    Ok(())
}

/// Accepts a kernel without seccomp filters: `enforced` reports what it lacks.
fn optional(applied: Result<(), Errno>) -> io::Result<()> {
    match applied {
        Err(Errno::NOSYS | Errno::INVAL) => Ok(()),
        other => Ok(other?),
    }
}

/// A filter that refuses to set the limits of another process. Reading them is allowed, also for 32-bit programs.
fn filter() -> BpfProgram {
    const LOAD: u16 = 0x20;
    const IS: u16 = 0x15;
    const IS_AT_LEAST: u16 = 0x35;
    const RETURN: u16 = 0x06;
    /// Offsets in `seccomp_data`: the call's number, its architecture, and the lower halves of its arguments.
    const NUMBER: u32 = 0;
    const ARCH: u32 = 4;
    const PROCESS: u32 = 16;
    const NEW_LIMIT: u32 = 32;
    let load = |offset| sock_filter { code: LOAD, jt: 0, jf: 0, k: offset };
    let jump = |code, k, jt, jf| sock_filter { code, jt, jf, k };
    let answer = |k| sock_filter { code: RETURN, jt: 0, jf: 0, k };
    vec![
        load(ARCH),
        jump(IS, NATIVE.arch, 0, 3),
        load(NUMBER),
        jump(IS_AT_LEAST, OTHER_NUMBERS, 11, 0),
        jump(IS, NATIVE.prlimit64, 3, 9),
        jump(IS, OF_32_BITS.arch, 0, 10),
        load(NUMBER),
        jump(IS, OF_32_BITS.prlimit64, 0, 6),
        load(PROCESS),
        jump(IS, 0, 4, 0),
        load(NEW_LIMIT),
        jump(IS, 0, 0, 3),
        load(NEW_LIMIT + 4),
        jump(IS, 0, 0, 1),
        answer(libc::SECCOMP_RET_ALLOW),
        answer(libc::SECCOMP_RET_ERRNO | Errno::PERM.raw_os_error().unsigned_abs()),
        answer(libc::SECCOMP_RET_KILL_PROCESS),
    ]
}
