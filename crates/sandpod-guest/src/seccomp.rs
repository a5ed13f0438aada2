//! Filters of system calls, which hold a thread and all that it starts for good.

use std::collections::BTreeMap;
use std::io;

use rustix::io::Errno;
use seccompiler::SeccompCmpArgLen::Dword;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    sock_filter,
};

use crate::bare;

/// System calls of another kind (x32) have numbers from here on: the same calls under other names.
pub(crate) const OTHER_NUMBERS: u32 = 0x4000_0000;

/// System calls that are refused, each if one of its rules matches, or always without any.
pub(crate) type Refused = BTreeMap<i64, Vec<SeccompRule>>;

/// A filter that answers `refused` calls, and all by other numbers, with `errno`. It also ends a process that calls
/// the kernel as another architecture's would.
pub(crate) fn filter(refused: Refused, errno: Errno) -> io::Result<BpfProgram> {
    let program = compile(refused, errno).map_err(io::Error::other)?;
    Ok(refuse_other_numbers(errno).into_iter().chain(program).collect())
}

/// Holds the calling thread to a filter, for good, by system calls alone.
#[expect(unsafe_code, reason = "filters have no safe interface without libc")]
pub(crate) fn apply(filter: &BpfProgram) -> Result<(), Errno> {
    let len = filter.len().try_into().map_err(|_| Errno::INVAL)?;
    let program = libc::sock_fprog { len, filter: filter.as_ptr().cast_mut().cast() };
    rustix::thread::set_no_new_privs(true)?;
    let arguments = [libc::SECCOMP_SET_MODE_FILTER as usize, 0, &raw const program as usize, 0];
    // SAFETY: the kernel reads the program, whose instructions have the layout that it knows.
    unsafe { bare::call(libc::SYS_seccomp, arguments) }.map(drop)
}

/// Calls that are refused whatever their arguments are.
pub(crate) fn always(calls: &[i64]) -> Refused {
    calls.iter().map(|call| (*call, Vec::new())).collect()
}

/// A condition on an argument that the kernel takes as an `int`, whatever is in the register above it.
pub(crate) fn argument(index: u8, is: SeccompCmpOp, value: i32) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(index, Dword, is, u64::from(value.cast_unsigned()))
}

/// A rule that matches when all its conditions do.
pub(crate) fn rule<const N: usize>(conditions: [SeccompCondition; N]) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(conditions.into())
}

fn compile(refused: Refused, errno: Errno) -> Result<BpfProgram, BackendError> {
    let answer = SeccompAction::Errno(errno.raw_os_error().unsigned_abs());
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(refused, SeccompAction::Allow, answer, arch)?.try_into()
}

/// If the call's number is one of the others, refuse it; else go on.
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
