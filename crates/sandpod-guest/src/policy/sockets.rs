//! Which sockets a command can make, held by a seccomp filter.
//!
//! Landlock knows TCP and nothing else: over UDP, MPTCP or a connection that opens with its first data (Fast
//! Open) a command would get past it. So the filter leaves only such sockets as are meant.

use std::collections::BTreeMap;
use std::io;

use rustix::io::Errno;
use seccompiler::SeccompCmpArgLen::Dword;
use seccompiler::SeccompCmpOp::{Eq, MaskedEq, Ne};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    sock_filter,
};

use super::rules::Network;
use crate::bare;

/// What a program is told.
const REFUSED: i32 = libc::EPERM;
/// System calls of another kind (x32) have numbers from here on: the same calls under other names.
const OTHER_NUMBERS: u32 = 0x4000_0000;

/// System calls that are refused, each if one of its rules matches, or always without any.
type Refused = BTreeMap<i64, Vec<SeccompRule>>;

/// A filter for a network that is not open.
pub(super) fn filter(network: &Network) -> io::Result<BpfProgram> {
    let refused = match network {
        Network::Ports { .. } => only_plain_tcp(),
        _ => only_unix(),
    };
    let program = refused.and_then(compile).map_err(io::Error::other)?;
    Ok(refuse_other_numbers().into_iter().chain(program).collect())
}

/// Holds the calling thread to a filter, for good, by system calls alone.
#[expect(unsafe_code, reason = "filters have no safe interface without libc")]
pub(super) fn apply(filter: &BpfProgram) -> Result<(), Errno> {
    let len = filter.len().try_into().map_err(|_| Errno::INVAL)?;
    let program = libc::sock_fprog { len, filter: filter.as_ptr().cast_mut().cast() };
    rustix::thread::set_no_new_privs(true)?;
    let arguments = [libc::SECCOMP_SET_MODE_FILTER as usize, 0, &raw const program as usize, 0];
    // SAFETY: the kernel reads the program, whose instructions have the layout that it knows.
    unsafe { bare::call(libc::SYS_seccomp, arguments) }.map(drop)
}

fn compile(refused: Refused) -> Result<BpfProgram, BackendError> {
    let errno = SeccompAction::Errno(REFUSED.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into()?;
    // It also ends a process that calls the kernel as another architecture's would.
    SeccompFilter::new(refused, SeccompAction::Allow, errno, arch)?.try_into()
}

/// No socket family but Unix.
fn only_unix() -> Result<Refused, BackendError> {
    let mut refused = without_io_uring();
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        refused.insert(call, vec![rule([is_not_unix()?])?]);
    }
    Ok(refused)
}

/// Unix, and TCP that asks Landlock before it connects.
fn only_plain_tcp() -> Result<Refused, BackendError> {
    let [unix, inet, inet6] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];
    let families = rule([argument(0, Ne, unix)?, argument(0, Ne, inet)?, argument(0, Ne, inet6)?])?;
    let protocols = rule([is_not_unix()?, argument(2, Ne, 0)?, argument(2, Ne, libc::IPPROTO_TCP)?])?;
    let mut sockets = vec![families, protocols];
    // The type is SOCK_STREAM, which is 1, in four bits with flags above them.
    for (bit, wrong) in [(1, 0), (2, 2), (4, 4), (8, 8)] {
        sockets.push(rule([is_not_unix()?, argument(1, MaskedEq(bit), wrong)?])?);
    }
    let fast_open = |index| rule([argument(index, MaskedEq(FAST_OPEN), libc::MSG_FASTOPEN)?]);
    let fast_open_option =
        rule([argument(1, Eq, libc::IPPROTO_TCP)?, argument(2, Eq, libc::TCP_FASTOPEN_CONNECT)?])?;
    let mut refused = without_io_uring();
    refused.extend([
        (libc::SYS_socket, sockets),
        (libc::SYS_socketpair, vec![rule([is_not_unix()?])?]),
        (libc::SYS_sendto, vec![fast_open(3)?]),
        (libc::SYS_sendmsg, vec![fast_open(2)?]),
        (libc::SYS_sendmmsg, vec![fast_open(3)?]),
        (libc::SYS_setsockopt, vec![fast_open_option]),
    ]);
    Ok(refused)
}

const FAST_OPEN: u64 = libc::MSG_FASTOPEN as u64;

/// What is queued there is done by the kernel without asking the filter.
fn without_io_uring() -> Refused {
    let calls = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
    calls.into_iter().map(|call| (call, Vec::new())).collect()
}

fn is_not_unix() -> Result<SeccompCondition, BackendError> {
    argument(0, Ne, libc::AF_UNIX)
}

/// A condition on an argument that the kernel takes as an `int`, whatever is in the register above it.
fn argument(index: u8, is: SeccompCmpOp, value: i32) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(index, Dword, is, u64::from(value.unsigned_abs()))
}

fn rule<const N: usize>(conditions: [SeccompCondition; N]) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(conditions.into())
}

/// If the call's number is one of the others, refuse it; else go on.
fn refuse_other_numbers() -> [sock_filter; 3] {
    const LOAD: u16 = 0x20;
    const IS_AT_LEAST: u16 = 0x35;
    const RETURN: u16 = 0x06;
    let step = |code, k, jf| sock_filter { code, jt: 0, jf, k };
    [
        step(LOAD, 0, 0),
        step(IS_AT_LEAST, OTHER_NUMBERS, 1),
        step(RETURN, libc::SECCOMP_RET_ERRNO | REFUSED.unsigned_abs(), 0),
    ]
}
