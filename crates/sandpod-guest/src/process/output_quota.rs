//! Limits for the output of all processes together, in memory and on disk.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Memory for the output of all processes; over it each process keeps less there.
const MEMORY: usize = 32 << 20;
/// Disk space for the output of all processes.
const DISK: usize = 128 << 20;

/// Counts the memory and disk space that output uses.
pub(crate) struct OutputQuota {
    dir: PathBuf,
    memory: AtomicUsize,
    disk: AtomicUsize,
    disk_most: usize,
}

impl OutputQuota {
    /// Makes a quota whose files are in a directory, which is created when needed.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir, memory: AtomicUsize::new(0), disk: AtomicUsize::new(0), disk_most: DISK }
    }

    /// Counts memory. This always succeeds.
    pub(crate) fn add_memory(&self, bytes: usize) {
        self.memory.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn release_memory(&self, bytes: usize) {
        self.memory.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns whether more memory is used than the limit.
    pub(crate) fn is_over_memory(&self) -> bool {
        self.memory.load(Ordering::Relaxed) > MEMORY
    }

    /// Reserves disk space. Returns whether there was enough.
    pub(crate) fn reserve_disk(&self, bytes: usize) -> bool {
        let reserve = |used: usize| used.checked_add(bytes).filter(|used| *used <= self.disk_most);
        self.disk.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve).is_ok()
    }

    pub(crate) fn release_disk(&self, bytes: usize) {
        self.disk.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns whether more than half of either is used, so that the output of ended processes should be dropped.
    pub(crate) fn is_half_used(&self) -> bool {
        let (memory, disk) = (self.memory.load(Ordering::Relaxed), self.disk.load(Ordering::Relaxed));
        memory > MEMORY / 2 || disk > self.disk_most / 2
    }

    /// Opens an unlinked file, which disappears with the guest however that ends.
    pub(crate) fn file(&self) -> io::Result<File> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        tempfile::tempfile_in(&self.dir)
    }
}

#[cfg(test)]
impl OutputQuota {
    /// A quota with the given disk space.
    pub(crate) fn with_disk(dir: PathBuf, disk_most: usize) -> Self {
        Self { disk_most, ..Self::new(dir) }
    }

    /// Returns the memory and the disk space in use.
    pub(crate) fn used(&self) -> (usize, usize) {
        (self.memory.load(Ordering::Relaxed), self.disk.load(Ordering::Relaxed))
    }
}
