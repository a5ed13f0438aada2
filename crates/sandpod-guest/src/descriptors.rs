//! Receives file descriptors through a Unix socket.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// Maximum number of descriptors in one message.
const MOST: usize = 4;

/// Receives a message into `bytes`, and the `N` descriptors that came with it, or `None` if there were fewer.
pub(crate) fn receive<const N: usize>(
    socket: impl AsFd,
    bytes: &mut [u8],
    how: RecvFlags,
) -> io::Result<Option<[OwnedFd; N]>> {
    const { assert!(N <= MOST) };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, how | RecvFlags::CMSG_CLOEXEC)?;
    let files = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let files: Vec<OwnedFd> = files.flatten().take(N).collect();
    Ok(files.try_into().ok())
}
