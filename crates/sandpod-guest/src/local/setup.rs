//! What a local sandbox is made with: one message on the control socket, with the files that it needs.
//!
//! Its first two bytes say whether the guest ends with its maker and whether it has the machine's network, the next
//! four how many tasks it may have (0: as many as it likes), and four more which user and group it becomes (0: it stays
//! who it is). The rest is a line for each writable place, its path in the sandbox, and a line `controller=directory`
//! for each cgroup that holds it. The files are the listener, the directory of the writable places, the lock and the
//! log, in this order.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::net::RecvFlags;

use crate::descriptors;

/// The longest message: a few paths.
const LONGEST: usize = 16 << 10;

/// What the maker of a local sandbox gives to its guest.
#[derive(Debug)]
pub(super) struct Setup {
    /// A Unix socket that listens: whoever connects to it is served.
    pub(super) listener: OwnedFd,
    /// The directory that holds the writable places.
    pub(super) places: OwnedFd,
    /// A file that is locked: it stays so for as long as the guest lives.
    pub(super) lock: OwnedFd,
    /// Where to say why the guest ended.
    pub(super) log: OwnedFd,
    /// The guest ends when its maker closes the control socket.
    pub(super) owned: bool,
    /// The machine's own network is there.
    pub(super) network: bool,
    /// How many processes and threads there may be; 0: as many as they like.
    pub(super) task_limit: u32,
    /// The user, and the group, to become.
    pub(super) user: Option<u32>,
    /// What is writable, as paths in the sandbox.
    pub(super) writable: Vec<PathBuf>,
    /// The cgroups that hold the sandbox, each with its controller; version 2 has one, without a name.
    pub(super) cgroups: Vec<(String, PathBuf)>,
}

impl Setup {
    /// Takes it from the control socket.
    pub(super) fn receive(control: BorrowedFd<'_>) -> io::Result<Self> {
        let mut message = vec![0; LONGEST];
        let files = descriptors::receive(control, &mut message, RecvFlags::empty())?;
        let Some([listener, places, lock, log]) = files else {
            return Err(io::Error::other("whoever started the guest gave it nothing to serve"));
        };
        let [owned, network, t0, t1, t2, t3, u0, u1, u2, u3, rest @ ..] = &message[..] else {
            return Err(io::Error::other("whoever started the guest said too little"));
        };
        let lines = String::from_utf8_lossy(rest);
        let lines = lines.trim_end_matches('\0');
        Ok(Self {
            listener,
            places,
            lock,
            log,
            owned: *owned != 0,
            network: *network != 0,
            task_limit: u32::from_le_bytes([*t0, *t1, *t2, *t3]),
            user: Some(u32::from_le_bytes([*u0, *u1, *u2, *u3])).filter(|user| *user > 0),
            writable: lines.lines().filter(|line| line.starts_with('/')).map(PathBuf::from).collect(),
            cgroups: cgroups(lines),
        })
    }
}

fn cgroups(lines: &str) -> Vec<(String, PathBuf)> {
    let pairs = lines.lines().filter_map(|line| line.split_once('='));
    pairs.map(|(controller, directory)| (controller.to_owned(), directory.into())).collect()
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::net::UnixStream;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    #[test]
    fn what_is_sent_arrives() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = |path| std::fs::File::open(path).unwrap();
        let sent = ["/dev/null", "/", "/dev/zero", "/dev/full"].map(file);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let files = sent.each_ref().map(|file| file.as_fd());
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg(
            &ours,
            &[io::IoSlice::new(
                b"\x01\x00\x00\x02\x00\x00\xfe\xff\x00\x00/tmp\n/home/x\nmemory=/some/where\n",
            )],
            &mut ancillary,
            SendFlags::empty(),
        )
        .unwrap();

        let received = Setup::receive(theirs.as_fd()).unwrap();

        assert_eq!((received.owned, received.network, received.task_limit), (true, false, 512));
        assert_eq!(received.user, Some(65534));
        assert_eq!(received.writable, [PathBuf::from("/tmp"), "/home/x".into()]);
        assert_eq!(received.cgroups, [("memory".to_owned(), "/some/where".into())]);
        let inode = |file: OwnedFd| std::fs::File::from(file).metadata().unwrap().ino();
        let received = [received.listener, received.places, received.lock, received.log].map(inode);
        assert_eq!(received, sent.map(|file| file.metadata().unwrap().ino()));
    }

    #[test]
    fn a_guest_that_is_given_nothing_says_so() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(ours);
        let why = Setup::receive(theirs.as_fd()).unwrap_err().to_string();
        assert!(why.contains("nothing to serve"), "{why}");
    }
}
