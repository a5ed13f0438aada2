//! The setup of a local sandbox: one message on the control socket, with the files that it needs.
//!
//! The first two bytes are whether the guest ends with its creator and whether it has the machine's network. The next four
//! are the maximum number of tasks (0: unlimited), and four more are the user and group to change to (0: unchanged). The
//! rest is a line for each writable directory, with its path in the sandbox, a line `controller=directory` for each
//! cgroup of the sandbox, a line for each mount (`ro` or `rw`, the path outside and the path inside, with tabs), and the
//! line `end`. The files are the listener, the directory that holds the writable directories, the lock and the log, in
//! this order.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::net::RecvFlags;

use super::mount::Mount;
use crate::descriptors;

/// Maximum size of the message: a few paths. `local::guest` of `sandpod` sends no longer one.
const MAX_MESSAGE_BYTES: usize = 16 << 10;
/// The last line. Without it the message was cut.
const END: &str = "\nend\n";

/// The setup that the creator of a local sandbox sends to its guest.
#[derive(Debug)]
pub(super) struct Setup {
    /// A listening Unix socket.
    pub(super) listener: OwnedFd,
    /// The directory that holds the writable directories.
    pub(super) writable_dirs: OwnedFd,
    /// A locked file, which stays locked for as long as the guest lives.
    pub(super) lock: OwnedFd,
    /// Log for the reason why the guest ended.
    pub(super) log: OwnedFd,
    /// Whether the guest ends when its creator closes the control socket.
    pub(super) owned: bool,
    /// Whether the sandbox shares the machine's network.
    pub(super) network: bool,
    /// Maximum number of processes and threads; 0: unlimited.
    pub(super) task_limit: u32,
    /// User and group to change to.
    pub(super) user: Option<u32>,
    /// Writable directories, as paths in the sandbox.
    pub(super) writable: Vec<PathBuf>,
    /// Cgroups of the sandbox, each with its controller; version 2 has one, without a name.
    pub(super) cgroups: Vec<(String, PathBuf)>,
    /// Files and directories of the machine to mount.
    pub(super) mounts: Vec<Mount>,
}

impl Setup {
    /// Receives the setup from the control socket.
    pub(super) fn receive(control: BorrowedFd<'_>) -> io::Result<Self> {
        let mut message = vec![0; MAX_MESSAGE_BYTES];
        let files = descriptors::receive(control, &mut message, RecvFlags::empty())?;
        let Some([listener, writable_dirs, lock, log]) = files else {
            return Err(io::Error::other(
                "the control socket has no setup: sandpod itself starts this program",
            ));
        };
        let incomplete = || io::Error::other("the setup is incomplete: sandpod itself starts this program");
        let [owned, network, t0, t1, t2, t3, u0, u1, u2, u3, rest @ ..] = &message[..] else {
            return Err(incomplete());
        };
        let lines = String::from_utf8_lossy(rest);
        let lines = lines.trim_end_matches('\0').strip_suffix(END).ok_or_else(incomplete)?;
        Ok(Self {
            listener,
            writable_dirs,
            lock,
            log,
            owned: *owned != 0,
            network: *network != 0,
            task_limit: u32::from_le_bytes([*t0, *t1, *t2, *t3]),
            user: Some(u32::from_le_bytes([*u0, *u1, *u2, *u3])).filter(|user| *user > 0),
            writable: lines.lines().filter(|line| line.starts_with('/')).map(PathBuf::from).collect(),
            cgroups: cgroups(lines),
            mounts: mounts(lines),
        })
    }
}

fn cgroups(lines: &str) -> Vec<(String, PathBuf)> {
    let lines = lines.lines().filter(|line| !line.contains('\t'));
    let pairs = lines.filter_map(|line| line.split_once('='));
    pairs.map(|(controller, directory)| (controller.to_owned(), directory.into())).collect()
}

fn mounts(lines: &str) -> Vec<Mount> {
    let mount = |line: &str| {
        let mut fields = line.split('\t');
        let (access, from, to) = (fields.next()?, fields.next()?, fields.next()?);
        Some(Mount::new(from, to, access == "rw"))
    };
    lines.lines().filter_map(mount).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::net::UnixStream;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    const MESSAGE: &[u8] =
        b"\x01\x00\x00\x02\x00\x00\xfe\xff\x00\x00/tmp\n/home/x\nmemory=/some/where\nrw\t/a=b\t/c\nend\n";

    /// Sends a message with four files and receives it.
    fn send(message: &[u8]) -> ([File; 4], io::Result<Setup>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let sent = ["/dev/null", "/", "/dev/zero", "/dev/full"].map(|path| File::open(path).unwrap());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let files = sent.each_ref().map(|file| file.as_fd());
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg(&ours, &[io::IoSlice::new(message)], &mut ancillary, SendFlags::empty()).unwrap();
        let received = Setup::receive(theirs.as_fd());
        (sent, received)
    }

    #[test]
    fn a_setup_is_received_as_sent() {
        let (sent, received) = send(MESSAGE);
        let received = received.unwrap();

        assert_eq!((received.owned, received.network, received.task_limit), (true, false, 512));
        assert_eq!(received.user, Some(65534));
        assert_eq!(received.writable, [PathBuf::from("/tmp"), "/home/x".into()]);
        assert_eq!(received.cgroups, [("memory".to_owned(), "/some/where".into())]);
        let [Mount { from, to, writable, .. }] = &received.mounts[..] else { panic!("there is one mount") };
        assert_eq!((from.to_str(), to.to_str(), *writable), (Some("/a=b"), Some("/c"), true));
        let inode = |file: OwnedFd| File::from(file).metadata().unwrap().ino();
        let received = [received.listener, received.writable_dirs, received.lock, received.log].map(inode);
        assert_eq!(received, sent.map(|file| file.metadata().unwrap().ino()));
    }

    #[test]
    fn a_setup_that_was_cut_is_refused() {
        let line = b"ro\t/host\t/guest\n";
        let start = &MESSAGE[..MESSAGE.len() - b"end\n".len()];
        let mut long = start.to_vec();
        long.extend(line.repeat(MAX_MESSAGE_BYTES / line.len()));
        long.extend(b"end\n");
        for cut in [start.to_vec(), MESSAGE[..5].to_vec(), long] {
            let why = send(&cut).1.unwrap_err().to_string();
            assert!(why.contains("incomplete"), "{why}");
        }
    }

    #[test]
    fn a_missing_setup_is_reported() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(ours);
        let why = Setup::receive(theirs.as_fd()).unwrap_err().to_string();
        assert!(why.contains("has no setup"), "{why}");
    }
}
