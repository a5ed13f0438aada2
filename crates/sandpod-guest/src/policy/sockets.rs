//! Which sockets a command can make, held by a seccomp filter.
//!
//! Landlock knows TCP and nothing else: over UDP, MPTCP or a connection that opens with its first data (Fast
//! Open) a command would get past it. So the filter leaves only such sockets as are meant.

use std::io;

use rustix::io::Errno;
use seccompiler::SeccompCmpOp::{Eq, MaskedEq, Ne};
use seccompiler::{BackendError, BpfProgram, SeccompCondition};

use super::rules::Network;
use crate::seccomp::{self, Refused, always, argument, rule};

/// A filter for a network that is not open.
pub(super) fn filter(network: &Network) -> io::Result<BpfProgram> {
    let refused = match network {
        Network::Ports { .. } => only_plain_tcp(),
        _ => only_unix(),
    };
    seccomp::filter(refused.map_err(io::Error::other)?, Errno::PERM)
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
    always(&[libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register])
}

fn is_not_unix() -> Result<SeccompCondition, BackendError> {
    argument(0, Ne, libc::AF_UNIX)
}
