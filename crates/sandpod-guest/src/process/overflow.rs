//! Output that does not fit into memory, in a file of limited size.
//!
//! The file is a ring of slots. A slot holds consecutive pieces of output, each after a header with its length and kind.
//! When no slot is free, the oldest one is overwritten.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use super::output_quota::OutputQuota;

/// Size of a slot, which is read as a whole to find an offset in it.
const SLOT_BYTES: usize = 64 << 10;
/// 16 MiB for each process.
const MAX_SLOTS: usize = 256;
const HEADER_BYTES: usize = 4;

/// Older output of one process.
pub(crate) struct Overflow {
    quota: Arc<OutputQuota>,
    file: Option<File>,
    slots: VecDeque<Slot>,
    /// Slots in the file that are reserved from the quota and hold nothing.
    free_slots: Vec<usize>,
}

/// A slot with output from `begin` to `end`.
struct Slot {
    index: usize,
    begin: u64,
    end: u64,
    filled: usize,
}

impl Slot {
    /// Returns the length of the longest piece that fits.
    fn free_bytes(&self) -> usize {
        SLOT_BYTES.saturating_sub(self.filled + HEADER_BYTES)
    }
}

impl Overflow {
    pub(crate) fn new(quota: Arc<OutputQuota>) -> Self {
        Self { quota, file: None, slots: VecDeque::new(), free_slots: Vec::new() }
    }

    /// Adds output that begins at an offset. Output for which there is no disk space is dropped.
    pub(crate) fn push(&mut self, mut offset: u64, mut data: &[u8], stderr: bool) {
        while !data.is_empty() {
            let last = self.slots.back().filter(|slot| slot.end == offset).map(Slot::free_bytes);
            let free_bytes = last.filter(|free_bytes| *free_bytes > 0).unwrap_or(SLOT_BYTES - HEADER_BYTES);
            let (piece, rest) = data.split_at(free_bytes.min(data.len()));
            // If this fails, readers get a hole here.
            let _ = self.write(offset, piece, stderr);
            offset += piece.len() as u64;
            data = rest;
        }
    }

    /// Returns the output from an offset to the end of its piece.
    pub(crate) fn at(&self, offset: u64) -> Option<(Vec<u8>, bool)> {
        let index = self.slots.partition_point(|slot| slot.begin <= offset).checked_sub(1)?;
        let slot = self.slots.get(index).filter(|slot| offset < slot.end)?;
        let mut bytes = vec![0; slot.filled];
        self.file.as_ref()?.read_exact_at(&mut bytes, position(slot.index)).ok()?;
        find(&bytes, offset - slot.begin)
    }

    /// Returns the offset at which output begins again after a hole.
    pub(crate) fn next_begin(&self, offset: u64) -> Option<u64> {
        let index = self.slots.partition_point(|slot| slot.begin <= offset);
        self.slots.get(index).map(|slot| slot.begin)
    }

    fn write(&mut self, offset: u64, piece: &[u8], stderr: bool) -> io::Result<()> {
        let continues = |slot: &Slot| slot.end == offset && piece.len() <= slot.free_bytes();
        let mut slot = match self.slots.pop_back() {
            Some(last) if continues(&last) => last,
            last => {
                self.slots.extend(last);
                Slot { index: self.index()?, begin: offset, end: offset, filled: 0 }
            }
        };
        let written = self.write_at(position(slot.index) + slot.filled as u64, piece, stderr);
        if written.is_ok() {
            slot.filled += HEADER_BYTES + piece.len();
            slot.end += piece.len() as u64;
        }
        if slot.filled > 0 {
            self.slots.push_back(slot);
        } else {
            self.free_slots.push(slot.index);
        }
        written
    }

    fn write_at(&mut self, position: u64, piece: &[u8], stderr: bool) -> io::Result<()> {
        let length = u32::try_from(piece.len()).map_err(io::Error::other)?;
        let mut bytes = Vec::with_capacity(HEADER_BYTES + piece.len());
        bytes.extend_from_slice(&(length << 1 | u32::from(stderr)).to_le_bytes());
        bytes.extend_from_slice(piece);
        if self.file.is_none() {
            self.file = Some(self.quota.file()?);
        }
        self.file.as_ref().map_or(Ok(()), |file| file.write_all_at(&bytes, position))
    }

    /// Returns the index of a free slot, or of the oldest one.
    fn index(&mut self) -> io::Result<usize> {
        if let Some(index) = self.free_slots.pop() {
            return Ok(index);
        }
        if self.slots.len() < MAX_SLOTS && self.quota.reserve_disk(SLOT_BYTES) {
            return Ok(self.slots.len());
        }
        let oldest = self.slots.pop_front().map(|slot| slot.index);
        oldest.ok_or_else(|| io::ErrorKind::StorageFull.into())
    }
}

impl Drop for Overflow {
    fn drop(&mut self) {
        self.quota.release_disk((self.slots.len() + self.free_slots.len()) * SLOT_BYTES);
    }
}

fn position(index: usize) -> u64 {
    (index * SLOT_BYTES) as u64
}

/// Returns the rest of the piece that contains the byte at an offset within a slot.
fn find(mut slot: &[u8], mut offset: u64) -> Option<(Vec<u8>, bool)> {
    while let Some((header, rest)) = slot.split_first_chunk::<HEADER_BYTES>() {
        let header = u32::from_le_bytes(*header);
        let (piece, rest) = rest.split_at_checked(usize::try_from(header >> 1).ok()?)?;
        if let Some(found) = usize::try_from(offset).ok().and_then(|offset| piece.get(offset..))
            && !found.is_empty()
        {
            return Some((found.to_vec(), header & 1 == 1));
        }
        offset -= piece.len() as u64;
        slot = rest;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overflow(disk_most: usize) -> (Overflow, Arc<OutputQuota>, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let quota = Arc::new(OutputQuota::with_disk(dir.path().join("output"), disk_most));
        (Overflow::new(quota.clone()), quota, dir)
    }

    #[test]
    fn output_is_found_from_any_offset_and_the_oldest_is_dropped() {
        let (mut overflow, _quota, _dir) = overflow(2 * SLOT_BYTES);
        let piece = vec![b'x'; SLOT_BYTES - HEADER_BYTES];
        let end = piece.len() as u64;
        for number in 0..3 {
            overflow.push(number * end, &piece, number == 2);
        }
        assert_eq!((overflow.at(0), overflow.next_begin(0)), (None, Some(end)));
        assert_eq!(overflow.at(2 * end - 5), Some((b"xxxxx".to_vec(), false)));
        assert_eq!(overflow.at(3 * end - 1), Some((b"x".to_vec(), true)));
        assert_eq!(overflow.at(3 * end), None);
    }

    #[test]
    fn only_output_that_a_full_disk_rejected_is_missing() {
        let (mut overflow, _quota, _dir) = overflow(usize::MAX);
        overflow.push(0, b"one", false);
        let file = overflow.file.replace(File::options().read(true).write(true).open("/dev/full").unwrap());
        overflow.push(3, b"two", false);
        overflow.file = file;
        overflow.push(6, b"three", false);
        assert_eq!(overflow.at(1), Some((b"ne".to_vec(), false)));
        assert_eq!((overflow.at(3), overflow.next_begin(3)), (None, Some(6)));
        assert_eq!(overflow.at(6), Some((b"three".to_vec(), false)));
    }

    #[test]
    fn drop_removes_the_file_and_releases_the_quota() {
        let (mut overflow, quota, dir) = overflow(usize::MAX);
        overflow.push(0, &vec![0; 3 * SLOT_BYTES], false);
        assert_eq!(std::fs::read_dir(dir.path().join("output")).unwrap().count(), 0);
        assert!(quota.used().1 >= 3 * SLOT_BYTES);
        drop(overflow);
        assert_eq!(quota.used(), (0, 0));
    }
}
