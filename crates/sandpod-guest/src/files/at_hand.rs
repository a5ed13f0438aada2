//! Whether a file can be looked at without waiting.
//!
//! Waking a thread for a call takes several times as long as looking at a file that the kernel has in memory. So such
//! a call is answered where it arrives, and only the others, which may wait for a disk or a network, go elsewhere.

use std::path::Path;

use rustix::fs::{CWD, FsWord, Mode, OFlags, ResolveFlags};

use super::facts::Facts;

/// File systems that answer from this machine: ext, tmpfs, overlayfs, XFS, Btrfs and F2FS. Others may wait for another one.
const OWN: [FsWord; 6] = [0xef53, 0x0102_1994, 0x794c_7630, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

/// What is behind a path, if the kernel has all of the way there in memory. It may be something else a moment later, so
/// this says how to do a call and never what comes of it.
pub(super) fn at_hand(path: &Path) -> Option<Facts> {
    let cached = ResolveFlags::CACHED | ResolveFlags::NO_MAGICLINKS;
    let file = rustix::fs::openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), cached).ok()?;
    if !OWN.contains(&rustix::fs::fstatfs(&file).ok()?.f_type) {
        return None;
    }
    rustix::fs::fstat(&file).ok().map(Facts::from)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_was_just_used_is_at_hand_and_one_of_the_kernels_own_or_none_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "12345").unwrap();
        assert_eq!(at_hand(&file).unwrap().size, 5);
        assert!(at_hand(Path::new("/proc/self/status")).is_none());
        assert!(at_hand(&dir.path().join("none")).is_none());
    }
}
