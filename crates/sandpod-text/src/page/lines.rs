//! Reads lines of any length and with any line ending.

use std::io::{self, BufRead};

/// Reads lines that end with `\n`, `\r\n`, `\r` or the end of the file. Buffers no more than its reader does.
pub(super) struct Lines<R>(R);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Line {
    Whole,
    /// The line did not fit. Its rest is still unread.
    Cut,
    /// There is no further line.
    None,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(reader: R) -> Self {
        Self(reader)
    }

    /// Reads the next line without its line ending into `line`, at most `room` bytes of it.
    pub(super) fn read(&mut self, line: &mut Vec<u8>, room: usize) -> io::Result<Line> {
        line.clear();
        self.next(|text| {
            let fitting = text.len().min(room - line.len());
            line.extend_from_slice(&text[..fitting]);
            fitting == text.len()
        })
    }

    /// Skips a line, or the rest of one that was cut; returns false if there is none.
    pub(super) fn skip(&mut self) -> io::Result<bool> {
        Ok(self.next(|_| true)? != Line::None)
    }

    pub(super) fn at_end(&mut self) -> io::Result<bool> {
        Ok(self.0.fill_buf()?.is_empty())
    }

    /// Passes the pieces of the next line to `keep` until it returns false.
    fn next(&mut self, mut keep: impl FnMut(&[u8]) -> bool) -> io::Result<Line> {
        let mut line = Line::None;
        loop {
            let buffer = self.0.fill_buf()?;
            if buffer.is_empty() {
                return Ok(line);
            }
            line = Line::Whole;
            let end = memchr::memchr2(b'\n', b'\r', buffer);
            let text = &buffer[..end.unwrap_or(buffer.len())];
            let (length, ending) = (text.len(), buffer.get(text.len()).copied());
            if !keep(text) {
                return Ok(Line::Cut);
            }
            self.0.consume(length + usize::from(ending.is_some()));
            if ending == Some(b'\r') && self.0.fill_buf()?.first() == Some(&b'\n') {
                self.0.consume(1);
            }
            if ending.is_some() {
                return Ok(line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    #[test]
    fn lines_end_with_any_of_three_endings_or_the_file_also_where_buffers_do() {
        let text = "one\ntwo\r\nthree\rfour\n\n\r\n\rlast";
        for capacity in 1..40 {
            let mut lines = Lines::new(BufReader::with_capacity(capacity, text.as_bytes()));
            let (mut line, mut found) = (Vec::new(), Vec::new());
            while lines.read(&mut line, 100).unwrap() == Line::Whole {
                found.push(String::from_utf8(line.clone()).unwrap());
            }
            assert_eq!(found, ["one", "two", "three", "four", "", "", "", "last"], "{capacity}");
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_and_its_rest_can_be_skipped() {
        let mut lines = Lines::new("12345\n123\nend".as_bytes());
        let mut line = Vec::new();
        assert_eq!((lines.read(&mut line, 3).unwrap(), line.as_slice()), (Line::Cut, &b"123"[..]));
        assert!(lines.skip().unwrap());
        assert_eq!((lines.read(&mut line, 3).unwrap(), line.as_slice()), (Line::Whole, &b"123"[..]));
        assert!(lines.skip().unwrap() && lines.at_end().unwrap());
        assert!(!lines.skip().unwrap());
    }
}
