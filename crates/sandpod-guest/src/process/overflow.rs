//! Output that no longer fits into memory, in a file of bounded size.
//!
//! The file is a ring of slots. A slot holds pieces of output that follow each other, each behind a header
//! with its length and kind; when there is no further slot, the oldest one is used again.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use super::room::Room;

/// A slot: what is read at once to find an offset in it.
const SLOT_BYTES: usize = 64 << 10;
/// 16 MiB for each process.
const MAX_SLOTS: usize = 256;
const HEADER_BYTES: usize = 4;

/// The older output of one process.
pub(crate) struct Overflow {
    room: Arc<Room>,
    file: Option<File>,
    slots: VecDeque<Slot>,
    /// Places in the file that are taken from the room and hold nothing.
    spare: Vec<usize>,
}

/// What a slot holds: output from `begin` to `end`.
struct Slot {
    place: usize,
    begin: u64,
    end: u64,
    filled: usize,
}

impl Slot {
    /// The longest piece that it still takes.
    fn free(&self) -> usize {
        SLOT_BYTES.saturating_sub(self.filled + HEADER_BYTES)
    }
}

impl Overflow {
    pub(crate) fn new(room: Arc<Room>) -> Self {
        Self { room, file: None, slots: VecDeque::new(), spare: Vec::new() }
    }

    /// Adds output that begins at an offset. What the disk has no room for is missing.
    pub(crate) fn push(&mut self, mut offset: u64, mut data: &[u8], stderr: bool) {
        while !data.is_empty() {
            let last = self.slots.back().filter(|slot| slot.end == offset).map(Slot::free);
            let free = last.filter(|free| *free > 0).unwrap_or(SLOT_BYTES - HEADER_BYTES);
            let (piece, rest) = data.split_at(free.min(data.len()));
            // A later reader finds a hole where this failed.
            let _ = self.write(offset, piece, stderr);
            offset += piece.len() as u64;
            data = rest;
        }
    }

    /// What there is from an offset on, to the end of its piece.
    pub(crate) fn at(&self, offset: u64) -> Option<(Vec<u8>, bool)> {
        let index = self.slots.partition_point(|slot| slot.begin <= offset).checked_sub(1)?;
        let slot = self.slots.get(index).filter(|slot| offset < slot.end)?;
        let mut bytes = vec![0; slot.filled];
        self.file.as_ref()?.read_exact_at(&mut bytes, position(slot.place)).ok()?;
        find(&bytes, offset - slot.begin)
    }

    /// Where output begins again after an offset.
    pub(crate) fn next_begin(&self, offset: u64) -> Option<u64> {
        let index = self.slots.partition_point(|slot| slot.begin <= offset);
        self.slots.get(index).map(|slot| slot.begin)
    }

    fn write(&mut self, offset: u64, piece: &[u8], stderr: bool) -> io::Result<()> {
        let goes_on = |slot: &Slot| slot.end == offset && piece.len() <= slot.free();
        let mut slot = match self.slots.pop_back() {
            Some(last) if goes_on(&last) => last,
            last => {
                self.slots.extend(last);
                Slot { place: self.place()?, begin: offset, end: offset, filled: 0 }
            }
        };
        let written = self.write_at(position(slot.place) + slot.filled as u64, piece, stderr);
        if written.is_ok() {
            slot.filled += HEADER_BYTES + piece.len();
            slot.end += piece.len() as u64;
        }
        if slot.filled > 0 {
            self.slots.push_back(slot);
        } else {
            self.spare.push(slot.place);
        }
        written
    }

    fn write_at(&mut self, position: u64, piece: &[u8], stderr: bool) -> io::Result<()> {
        let length = u32::try_from(piece.len()).map_err(io::Error::other)?;
        let mut bytes = Vec::with_capacity(HEADER_BYTES + piece.len());
        bytes.extend_from_slice(&(length << 1 | u32::from(stderr)).to_le_bytes());
        bytes.extend_from_slice(piece);
        if self.file.is_none() {
            self.file = Some(self.room.file()?);
        }
        self.file.as_ref().map_or(Ok(()), |file| file.write_all_at(&bytes, position))
    }

    /// A place for a slot: one that is free, or else that of the oldest.
    fn place(&mut self) -> io::Result<usize> {
        if let Some(place) = self.spare.pop() {
            return Ok(place);
        }
        if self.slots.len() < MAX_SLOTS && self.room.take_disk(SLOT_BYTES) {
            return Ok(self.slots.len());
        }
        let oldest = self.slots.pop_front().map(|slot| slot.place);
        oldest.ok_or_else(|| io::ErrorKind::StorageFull.into())
    }
}

impl Drop for Overflow {
    fn drop(&mut self) {
        self.room.give_disk((self.slots.len() + self.spare.len()) * SLOT_BYTES);
    }
}

fn position(place: usize) -> u64 {
    (place * SLOT_BYTES) as u64
}

/// The rest of the piece that holds a byte of a slot.
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

    fn overflow(disk_most: usize) -> (Overflow, Arc<Room>, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let room = Arc::new(Room::of(dir.path().join("output"), disk_most));
        (Overflow::new(room.clone()), room, dir)
    }

    #[test]
    fn output_is_found_from_any_offset_and_the_oldest_goes_first() {
        let (mut overflow, _room, _dir) = overflow(2 * SLOT_BYTES);
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
    fn what_a_full_disk_did_not_take_is_missing_and_nothing_else() {
        let (mut overflow, _room, _dir) = overflow(usize::MAX);
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
    fn nothing_is_left_of_it_when_it_is_dropped() {
        let (mut overflow, room, dir) = overflow(usize::MAX);
        overflow.push(0, &vec![0; 3 * SLOT_BYTES], false);
        assert_eq!(std::fs::read_dir(dir.path().join("output")).unwrap().count(), 0);
        assert!(room.taken().1 >= 3 * SLOT_BYTES);
        drop(overflow);
        assert_eq!(room.taken(), (0, 0));
    }
}
