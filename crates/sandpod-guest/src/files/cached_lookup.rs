//! Looks up cached files, as a fast path that needs no thread.
//!
//! Waking a thread for a call takes several times as long as reading a file that the kernel has in memory. Calls for such
//! files run on the async worker, and only others, which may wait for a disk or a network, run on a blocking thread.

use std::path::Path;

use rustix::fs::{CWD, FsWord, Mode, OFlags, ResolveFlags};

use super::file_stat::FileStat;

/// Local file systems: ext, tmpfs, overlayfs, XFS, Btrfs and F2FS. Others may wait for another machine.
const OWN: [FsWord; 6] = [0xef53, 0x0102_1994, 0x794c_7630, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

/// Returns the stat of a path, if the kernel has the whole path cached. It may change a moment later, so the result
/// only decides how a call runs, not what it returns.
pub(super) fn cached_lookup(path: &Path) -> Option<FileStat> {
    let cached = ResolveFlags::CACHED | ResolveFlags::NO_MAGICLINKS;
    let file = rustix::fs::openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), cached).ok()?;
    if !OWN.contains(&rustix::fs::fstatfs(&file).ok()?.f_type) {
        return None;
    }
    rustix::fs::fstat(&file).ok().map(FileStat::from)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_a_recently_used_file_on_a_local_file_system_is_cached() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "12345").unwrap();
        assert_eq!(cached_lookup(&file).unwrap().size, 5);
        assert!(cached_lookup(Path::new("/proc/self/status")).is_none());
        assert!(cached_lookup(&dir.path().join("none")).is_none());
    }
}
