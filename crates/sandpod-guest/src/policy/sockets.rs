//! Restricts the sockets that a command can make, with a seccomp filter.
//!
//! Landlock restricts TCP only: over UDP, MPTCP or TCP Fast Open a command would get past it. The filter therefore
//! allows only the kinds of sockets that the rules mean.

use std::io;

use rustix::io::Errno;
use seccompiler::SeccompCmpOp::{Eq, MaskedEq, Ne};
use seccompiler::{BackendError, BpfProgram, SeccompCondition};

use super::rules::Network;
use crate::seccomp::{self, Denylist, always, argument, rule};

/// Builds the filter for a restricted network.
pub(super) fn filter(network: &Network) -> io::Result<BpfProgram> {
    let denied = match network {
        Network::Ports { .. } => only_plain_tcp(),
        _ => only_unix(),
    };
    seccomp::filter(denied.map_err(io::Error::other)?, Errno::PERM)
}

/// Allows no socket family but Unix.
fn only_unix() -> Result<Denylist, BackendError> {
    let mut denied = without_io_uring();
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        denied.insert(call, vec![rule([is_not_unix()?])?]);
    }
    Ok(denied)
}

/// Allows Unix sockets and plain TCP, which Landlock checks.
fn only_plain_tcp() -> Result<Denylist, BackendError> {
    let [unix, inet, inet6] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];
    let families = rule([argument(0, Ne, unix)?, argument(0, Ne, inet)?, argument(0, Ne, inet6)?])?;
    let protocols = rule([is_not_unix()?, argument(2, Ne, 0)?, argument(2, Ne, libc::IPPROTO_TCP)?])?;
    let mut sockets = vec![families, protocols];
    // The lower four bits are the type, SOCK_STREAM is 1; flags are above them.
    for (bit, wrong) in [(1, 0), (2, 2), (4, 4), (8, 8)] {
        sockets.push(rule([is_not_unix()?, argument(1, MaskedEq(bit), wrong)?])?);
    }
    let fast_open = |index| rule([argument(index, MaskedEq(FAST_OPEN), libc::MSG_FASTOPEN)?]);
    let fast_open_option =
        rule([argument(1, Eq, libc::IPPROTO_TCP)?, argument(2, Eq, libc::TCP_FASTOPEN_CONNECT)?])?;
    let mut denied = without_io_uring();
    denied.extend([
        (libc::SYS_socket, sockets),
        (libc::SYS_socketpair, vec![rule([is_not_unix()?])?]),
        (libc::SYS_sendto, vec![fast_open(3)?]),
        (libc::SYS_sendmsg, vec![fast_open(2)?]),
        (libc::SYS_sendmmsg, vec![fast_open(3)?]),
        (libc::SYS_setsockopt, vec![fast_open_option]),
    ]);
    Ok(denied)
}

const FAST_OPEN: u64 = libc::MSG_FASTOPEN as u64;

/// Denies `io_uring`: the kernel runs its queued operations without asking the filter.
fn without_io_uring() -> Denylist {
    always(&[libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register])
}

fn is_not_unix() -> Result<SeccompCondition, BackendError> {
    argument(0, Ne, libc::AF_UNIX)
}
