//! The room that the output of all processes shares, in memory and on disk.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What the output of all processes may take in memory; past it each keeps little there.
const MEMORY: usize = 32 << 20;
/// What the output of all processes may take on disk.
const DISK: usize = 128 << 20;

/// Counts what is taken.
pub(crate) struct Room {
    dir: PathBuf,
    memory: AtomicUsize,
    disk: AtomicUsize,
    disk_most: usize,
}

impl Room {
    /// Room with its files in a directory, which is made when it is needed.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir, memory: AtomicUsize::new(0), disk: AtomicUsize::new(0), disk_most: DISK }
    }

    /// Counts memory; it is there in any case.
    pub(crate) fn take_memory(&self, bytes: usize) {
        self.memory.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn give_memory(&self, bytes: usize) {
        self.memory.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether more memory is taken than there should be.
    pub(crate) fn is_short_of_memory(&self) -> bool {
        self.memory.load(Ordering::Relaxed) > MEMORY
    }

    /// Takes room on disk, if there is that much.
    pub(crate) fn take_disk(&self, bytes: usize) -> bool {
        let take = |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= self.disk_most);
        self.disk.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    pub(crate) fn give_disk(&self, bytes: usize) {
        self.disk.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether more than half of either is taken: what ended processes wrote can go.
    pub(crate) fn is_filling(&self) -> bool {
        let (memory, disk) = (self.memory.load(Ordering::Relaxed), self.disk.load(Ordering::Relaxed));
        memory > MEMORY / 2 || disk > self.disk_most / 2
    }

    /// A file without a name: it is gone when the guest is, however that ends.
    pub(crate) fn file(&self) -> io::Result<File> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        tempfile::tempfile_in(&self.dir)
    }
}

#[cfg(test)]
impl Room {
    /// Room for so much on disk.
    pub(crate) fn of(dir: PathBuf, disk_most: usize) -> Self {
        Self { disk_most, ..Self::new(dir) }
    }

    /// What is taken of both.
    pub(crate) fn taken(&self) -> (usize, usize) {
        (self.memory.load(Ordering::Relaxed), self.disk.load(Ordering::Relaxed))
    }
}
