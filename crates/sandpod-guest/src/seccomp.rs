//! Filters of system calls. They apply to a thread and all that it starts, permanently.

use std::collections::BTreeMap;
use std::io;

use rustix::io::Errno;
use seccompiler::SeccompCmpArgLen::Dword;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    sock_filter,
};

use crate::syscalls;

/// Call numbers from here on are those of x32: the same calls under other numbers.
pub(crate) const OTHER_NUMBERS: u32 = 0x4000_0000;

/// Denied system calls. A call is denied if one of its rules matches, or always if it has none.
pub(crate) type Denylist = BTreeMap<i64, Vec<SeccompRule>>;

/// Builds a filter that answers the denied calls, and all calls with x32 numbers, with `errno`. It also kills a process
/// that makes a call of another architecture.
pub(crate) fn filter(denied: Denylist, errno: Errno) -> io::Result<BpfProgram> {
    let program = compile(denied, errno).map_err(io::Error::other)?;
    Ok(refuse_other_numbers(errno).into_iter().chain(program).collect())
}

/// Applies a filter to the calling thread, permanently. Makes system calls only.
#[expect(unsafe_code, reason = "seccomp filters have no safe interface without libc")]
pub(crate) fn apply(filter: &BpfProgram) -> Result<(), Errno> {
    let len = filter.len().try_into().map_err(|_| Errno::INVAL)?;
    let program = libc::sock_fprog { len, filter: filter.as_ptr().cast_mut().cast() };
    rustix::thread::set_no_new_privs(true)?;
    let arguments = [libc::SECCOMP_SET_MODE_FILTER as usize, 0, &raw const program as usize, 0];
    // SAFETY: the kernel reads the program, whose instructions have its layout.
    unsafe { syscalls::call(libc::SYS_seccomp, arguments) }.map(drop)
}

/// Denies calls whatever their arguments are.
pub(crate) fn always(calls: &[i64]) -> Denylist {
    calls.iter().map(|call| (*call, Vec::new())).collect()
}

/// A condition on an argument that the kernel reads as an `int`, so that the upper half of the register is ignored.
pub(crate) fn argument(index: u8, is: SeccompCmpOp, value: i32) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(index, Dword, is, u64::from(value.cast_unsigned()))
}

/// A rule that matches if all its conditions do.
pub(crate) fn rule<const N: usize>(conditions: [SeccompCondition; N]) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(conditions.into())
}

fn compile(denied: Denylist, errno: Errno) -> Result<BpfProgram, BackendError> {
    let answer = SeccompAction::Errno(errno.raw_os_error().unsigned_abs());
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(denied, SeccompAction::Allow, answer, arch)?.try_into()
}

/// Refuses calls with x32 numbers and continues with the next instruction otherwise.
fn refuse_other_numbers(errno: Errno) -> [sock_filter; 3] {
    const LOAD: u16 = 0x20;
    const IS_AT_LEAST: u16 = 0x35;
    const RETURN: u16 = 0x06;
    let step = |code, k, jf| sock_filter { code, jt: 0, jf, k };
    [
        step(LOAD, 0, 0),
        step(IS_AT_LEAST, OTHER_NUMBERS, 1),
        step(RETURN, libc::SECCOMP_RET_ERRNO | errno.raw_os_error().unsigned_abs(), 0),
    ]
}
