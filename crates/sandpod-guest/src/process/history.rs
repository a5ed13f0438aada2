//! The last output of a process, within bounds: what was dropped is known, never skipped.

use std::collections::VecDeque;

use sandpod_protocol::v1::Output;
use sandpod_protocol::v1::process_event::Event;

/// The memory that a process's output may take.
const CAPACITY: usize = 256 << 10;
/// What one piece takes besides its bytes.
const PIECE_COST: usize = 64;
/// Pieces of one kind grow to this size.
const PIECE_BYTES: usize = 16 << 10;

/// Output with the offset of each byte, of both kinds together.
#[derive(Default)]
pub(crate) struct History {
    pieces: VecDeque<Piece>,
    cost: usize,
    end: u64,
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
    /// Adds output; the oldest goes where it is too much.
    pub(crate) fn push(&mut self, data: &[u8], stderr: bool) {
        let grows =
            |piece: &&mut Piece| piece.stderr == stderr && piece.data.len() + data.len() <= PIECE_BYTES;
        if let Some(last) = self.pieces.back_mut().filter(grows) {
            last.data.extend_from_slice(data);
            self.cost += data.len();
        } else {
            let piece = Piece { offset: self.end, data: data.to_vec(), stderr };
            self.cost += piece.cost();
            self.pieces.push_back(piece);
        }
        self.end += data.len() as u64;
        while self.cost > CAPACITY {
            let Some(oldest) = self.pieces.pop_front() else { return };
            self.cost -= oldest.cost();
        }
    }

    /// The offset after the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// What there is at an offset, and the offset after it.
    pub(crate) fn at(&self, offset: u64) -> Option<(Event, u64)> {
        if offset >= self.end {
            return None;
        }
        let begin = self.pieces.front().map_or(self.end, |piece| piece.offset);
        if offset < begin {
            return Some((Event::HoleUntil(begin), begin));
        }
        let index = self.pieces.partition_point(|piece| piece.offset <= offset).checked_sub(1)?;
        let piece = self.pieces.get(index)?;
        let data = piece.data.get(usize::try_from(offset - piece.offset).ok()?..)?.to_vec();
        let next = offset + data.len() as u64;
        Some((Event::Output(Output { offset, data: data.into(), stderr: piece.stderr }), next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut history = History::default();
        history.push(b"ab", false);
        history.push(b"cd", false);
        history.push(b"ef", true);
        assert_eq!(all(&history, 0), [output(0, b"abcd", false), output(4, b"ef", true)]);
        assert_eq!(all(&history, 3), [output(3, b"d", false), output(4, b"ef", true)]);
        assert_eq!(all(&history, 6), []);
    }

    #[test]
    fn what_was_dropped_is_a_hole() {
        let mut history = History::default();
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
    fn many_small_pieces_stay_within_bounds_too() {
        let mut history = History::default();
        for number in 0..CAPACITY {
            history.push(b"x", number % 2 == 0);
        }
        assert!(history.pieces.len() <= CAPACITY / PIECE_COST);
    }
}
