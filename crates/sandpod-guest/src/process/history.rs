//! The last output of a process, within limits. Dropped output is reported as a hole.
//!
//! The newest output is in memory; older output moves to disk ([`Overflow`]).

use std::collections::VecDeque;
use std::sync::Arc;

use sandpod_protocol::v1::Output;
use sandpod_protocol::v1::process_event::Event;

use super::output_quota::OutputQuota;
use super::overflow::Overflow;

/// Maximum memory for a process's output.
const CAPACITY: usize = 256 << 10;
/// Maximum memory for a process's output while the total of all processes is over its limit.
const REDUCED_CAPACITY: usize = 32 << 10;
/// Memory overhead of one piece.
const PIECE_COST: usize = 64;
/// Size up to which consecutive output of one kind is joined into a piece.
const PIECE_BYTES: usize = 16 << 10;

/// Output of a process. Offsets count the bytes of stdout and stderr together.
pub(crate) struct History {
    pieces: VecDeque<Piece>,
    cost: usize,
    end: u64,
    overflow: Overflow,
    quota: Arc<OutputQuota>,
}

struct Piece {
    offset: u64,
    data: Vec<u8>,
    stderr: bool,
}

impl Piece {
    fn cost(&self) -> usize {
        PIECE_COST + self.data.len()
    }
}

impl History {
    pub(crate) fn new(quota: Arc<OutputQuota>) -> Self {
        Self { pieces: VecDeque::new(), cost: 0, end: 0, overflow: Overflow::new(quota.clone()), quota }
    }

    /// Adds output, and moves the oldest to disk if there is too much.
    pub(crate) fn push(&mut self, data: &[u8], stderr: bool) {
        let grows =
            |piece: &&mut Piece| piece.stderr == stderr && piece.data.len() + data.len() <= PIECE_BYTES;
        let cost = if let Some(last) = self.pieces.back_mut().filter(grows) {
            last.data.extend_from_slice(data);
            data.len()
        } else {
            let piece = Piece { offset: self.end, data: data.to_vec(), stderr };
            let cost = piece.cost();
            self.pieces.push_back(piece);
            cost
        };
        self.cost += cost;
        self.quota.add_memory(cost);
        self.end += data.len() as u64;
        self.shrink();
    }

    /// Returns the offset after the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Returns the pieces in memory, oldest first.
    pub(crate) fn pieces(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.pieces.iter().map(|piece| &*piece.data)
    }

    /// Returns the event at an offset, and the offset after it.
    pub(crate) fn at(&self, offset: u64) -> Option<(Event, u64)> {
        if offset >= self.end {
            return None;
        }
        let in_memory = self.pieces.front().map_or(self.end, |piece| piece.offset);
        let found = if offset < in_memory { self.overflow.at(offset) } else { self.memory_at(offset) };
        let Some((data, stderr)) = found else {
            let begin = self.overflow.next_begin(offset).unwrap_or(in_memory);
            return Some((Event::HoleUntil(begin), begin));
        };
        let next = offset + data.len() as u64;
        Some((Event::Output(Output { offset, data: data.into(), stderr }), next))
    }

    /// Returns the output in memory at an offset.
    fn memory_at(&self, offset: u64) -> Option<(Vec<u8>, bool)> {
        let index = self.pieces.partition_point(|piece| piece.offset <= offset).checked_sub(1)?;
        let piece = self.pieces.get(index)?;
        let data = piece.data.get(usize::try_from(offset - piece.offset).ok()?..)?;
        Some((data.to_vec(), piece.stderr))
    }

    fn shrink(&mut self) {
        while self.cost > CAPACITY || (self.cost > REDUCED_CAPACITY && self.quota.is_over_memory()) {
            let Some(oldest) = self.pieces.pop_front() else { return };
            self.cost -= oldest.cost();
            self.quota.release_memory(oldest.cost());
            self.overflow.push(oldest.offset, &oldest.data, oldest.stderr);
        }
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.quota.release_memory(self.cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON_DISK: usize = 16 << 20;

    fn history(disk_most: usize) -> (History, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        (History::new(Arc::new(OutputQuota::with_disk(dir.path().to_owned(), disk_most))), dir)
    }

    fn all(history: &History, mut offset: u64) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some((event, next)) = history.at(offset) {
            events.push(event);
            offset = next;
        }
        events
    }

    fn output(offset: u64, data: &[u8], stderr: bool) -> Event {
        Event::Output(Output { offset, data: data.to_vec().into(), stderr })
    }

    #[test]
    fn output_is_found_from_any_offset() {
        let (mut history, _dir) = history(ON_DISK);
        history.push(b"ab", false);
        history.push(b"cd", false);
        history.push(b"ef", true);
        assert_eq!(all(&history, 0), [output(0, b"abcd", false), output(4, b"ef", true)]);
        assert_eq!(all(&history, 3), [output(3, b"d", false), output(4, b"ef", true)]);
        assert_eq!(all(&history, 6), []);
    }

    #[test]
    fn dropped_output_is_a_hole() {
        let (mut history, _dir) = history(0);
        for _ in 0..CAPACITY {
            history.push(b"xy", false);
        }
        let events = all(&history, 0);
        let Event::HoleUntil(begin) = events[0] else { panic!("{:?}", events[0]) };
        assert_eq!(history.end(), 2 * CAPACITY as u64);
        assert!(begin > CAPACITY as u64 / 2);
        assert!(matches!(&events[1], Event::Output(output) if output.offset == begin));
    }

    #[test]
    fn many_small_pieces_stay_within_the_limit() {
        let (mut history, _dir) = history(ON_DISK);
        for number in 0..CAPACITY {
            history.push(b"x", number % 2 == 0);
        }
        assert!(history.pieces.len() <= CAPACITY / PIECE_COST);
    }

    #[test]
    fn the_last_16_mib_are_kept_in_little_memory() {
        let (mut history, _dir) = history(usize::MAX);
        for number in 0..3000_u32 {
            history.push(&[u8::try_from(number % 251).unwrap(); 8 << 10], false);
        }
        let events = all(&history, 0);
        let Event::HoleUntil(begin) = events[0] else { panic!("{:?}", events[0]) };
        let there = history.end() - begin;
        assert!((15 << 20..17 << 20).contains(&there), "{there} bytes are there");
        assert!(history.cost <= CAPACITY);
        for event in &events[1..] {
            let Event::Output(output) = event else { panic!("a second hole: {event:?}") };
            let wrong = output
                .data
                .iter()
                .zip(output.offset..)
                .find(|(byte, at)| u64::from(**byte) != (at >> 13) % 251);
            assert_eq!(wrong, None);
        }
    }

    /// Whatever is written, and however little disk space there is: from any offset on, each byte is replayed as it was
    /// written or lies in a reported hole, and the newest output is complete.
    #[test]
    fn replay_is_exact_for_random_output() {
        for seed in 0..25 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut history, _dir) = history(random.usize(0..40) * (16 << 10));
            let mut written: Vec<(u8, bool)> = Vec::new();
            for _ in 0..random.usize(1..400) {
                let most = if random.u8(..) < 200 { 300 } else { 20_000 };
                let stderr = random.bool();
                let data: Vec<u8> = (0..random.usize(1..most)).map(|_| random.u8(..)).collect();
                written.extend(data.iter().map(|byte| (*byte, stderr)));
                history.push(&data, stderr);
            }
            for _ in 0..5 {
                let from = random.usize(0..=written.len());
                check_replay(&history, &written, from);
            }
        }
    }

    fn check_replay(history: &History, written: &[(u8, bool)], from: usize) {
        let (mut offset, mut last_hole) = (from, from);
        for event in all(history, from as u64) {
            match event {
                Event::Output(output) => {
                    assert_eq!(output.offset, offset as u64);
                    let expected = &written[offset..offset + output.data.len()];
                    assert!(
                        output.data.iter().map(|byte| (*byte, output.stderr)).eq(expected.iter().copied())
                    );
                    offset += output.data.len();
                }
                Event::HoleUntil(until) => {
                    assert!(until > offset as u64);
                    offset = usize::try_from(until).unwrap();
                    last_hole = offset;
                }
                Event::Exit(_) => panic!("a history has no end"),
            }
        }
        assert_eq!(offset, written.len());
        let newest = written.len().saturating_sub(100 << 10).max(from);
        let small_pieces = history.pieces.iter().filter(|piece| piece.data.len() < 100).count() > 500;
        assert!(last_hole <= newest || small_pieces, "a hole until {last_hole} of {}", written.len());
    }
}
