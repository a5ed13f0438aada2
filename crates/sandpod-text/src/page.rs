//! Pages of text files, and small binary files.

mod lines;

use std::io::{self, BufRead, BufReader, Read};

use sandpod_protocol::v1::read_response::Content;
use sandpod_protocol::v1::{ErrorCode, ReadRequest, TextPage};
use sandpod_protocol::{Failure, limits};

use self::lines::{Line, Lines};
use crate::fitting;
use crate::output::whole_characters;

/// How much of a file must be UTF-8 for the file to be text.
const SAMPLE_BYTES: usize = 8192;
/// Maximum size of a file whose lines are counted beyond the page.
const COUNTED_BYTES: u64 = 1 << 20;

/// Why there is no page.
#[derive(Debug)]
pub enum NoPage {
    /// The content cannot be read.
    Unreadable(io::Error),
    /// The request is invalid for this content.
    Refused(Failure),
}

impl From<io::Error> for NoPage {
    fn from(error: io::Error) -> Self {
        Self::Unreadable(error)
    }
}

/// Returns the maximum size of the answer to a request.
#[must_use]
pub fn max_bytes(request: &ReadRequest) -> u64 {
    match request.max_bytes {
        0 => limits::DEFAULT_READ_BYTES,
        asked => asked.min(limits::MAX_OUTPUT_BYTES),
    }
}

/// Makes the requested page of a content of `size` bytes. Reads up to the end of the page, and for small files to the end of
/// the file, to count the lines.
///
/// ```
/// use sandpod_protocol::v1::ReadRequest;
/// use sandpod_protocol::v1::read_response::Content;
///
/// let request = ReadRequest { line_offset: 1, line_limit: 1, ..ReadRequest::default() };
/// let content = "one\r\ntwo\r\nthree\r\n";
/// let Ok(Content::Text(page)) = sandpod_text::page::page(&request, content.as_bytes(), content.len() as u64) else {
///     panic!("it is text")
/// };
/// assert_eq!((page.content.as_str(), page.start_line, page.total_lines), ("two", 2, Some(3)));
/// ```
pub fn page(request: &ReadRequest, mut content: impl Read, size: u64) -> Result<Content, NoPage> {
    let max_bytes = max_bytes(request);
    let mut sample = Vec::with_capacity(SAMPLE_BYTES);
    content.by_ref().take(SAMPLE_BYTES as u64).read_to_end(&mut sample)?;
    Ok(if sample.is_empty() {
        Content::Text(TextPage { empty_file: true, total_lines: Some(0), ..TextPage::default() })
    } else if request.binary || !is_text(&sample) {
        Content::Binary(binary(sample, content, max_bytes)?.into())
    } else if request.line_limit == 0 {
        Content::Text(TextPage::default())
    } else {
        let (buffer, rest) =
            if sample.len() < SAMPLE_BYTES { (sample.len(), 0) } else { (64 << 10, u64::MAX) };
        let pager = Pager {
            lines: Lines::new(BufReader::with_capacity(buffer, sample.chain(content.take(rest)))),
            max_bytes: usize::try_from(max_bytes).unwrap_or(usize::MAX),
            counts_all: size <= COUNTED_BYTES,
            passed: 0,
        };
        Content::Text(pager.page(request)?)
    })
}

/// Returns whether a file that begins with `sample` is text: UTF-8, except for a character cut at the end of the sample.
fn is_text(sample: &[u8]) -> bool {
    match std::str::from_utf8(sample) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none() && sample.len() == SAMPLE_BYTES,
    }
}

fn binary(mut content: Vec<u8>, rest: impl Read, max_bytes: u64) -> Result<Vec<u8>, NoPage> {
    let room = (max_bytes + 1).saturating_sub(content.len() as u64);
    rest.take(room).read_to_end(&mut content)?;
    if content.len() as u64 > max_bytes {
        let message = format!("Binary file exceeds maximum preview size of {max_bytes} bytes");
        return Err(NoPage::Refused(Failure::new(ErrorCode::TooLarge, message)));
    }
    Ok(content)
}

/// Makes one page line by line, so that neither a long file nor a long line fills the memory.
struct Pager<R> {
    lines: Lines<R>,
    max_bytes: usize,
    /// Count the lines after the page, too.
    counts_all: bool,
    /// Number of lines read so far.
    passed: u64,
}

impl<R: BufRead> Pager<R> {
    fn page(mut self, request: &ReadRequest) -> Result<TextPage, NoPage> {
        let offset = request.line_offset;
        if !self.pass_to(offset)? {
            let message = format!("Line offset {offset} exceeds file length ({} lines)", self.passed);
            return Err(NoPage::Refused(Failure::new(ErrorCode::InvalidArgument, message)));
        }
        Ok(self.fill(offset, request.line_limit)?)
    }

    /// Skips to the line at `offset`; returns false if there is none.
    fn pass_to(&mut self, offset: u64) -> io::Result<bool> {
        while self.passed < offset && self.lines.skip()? {
            self.passed += 1;
        }
        Ok(!self.lines.at_end()?)
    }

    fn fill(&mut self, offset: u64, limit: u64) -> io::Result<TextPage> {
        let mut page = TextPage { start_line: offset + 1, ..TextPage::default() };
        while !page.truncated && self.passed - offset < limit && self.add_line(&mut page, offset)? {}
        // A first line that does not fit counts. Otherwise no reader could continue after it.
        page.end_line = if page.truncated { (self.passed - 1).max(offset + 1) } else { self.passed };
        page.total_lines = self.count()?;
        page.more = page.total_lines.is_none_or(|total| page.end_line < total);
        Ok(page)
    }

    /// Adds the next line to the page, or the part that fits; returns false if there is none.
    fn add_line(&mut self, page: &mut TextPage, offset: u64) -> io::Result<bool> {
        let separator = if self.passed == offset { "" } else { "\n" };
        let room = self.max_bytes.saturating_sub(page.content.len() + separator.len());
        let mut bytes = Vec::new();
        let line = self.lines.read(&mut bytes, room)?;
        if line == Line::None {
            return Ok(false);
        }
        self.passed += 1;
        if line == Line::Cut {
            bytes.truncate(whole_characters(&bytes));
        }
        let text = String::from_utf8_lossy(&bytes);
        let fitting = fitting(&text, room);
        let no_room = page.content.len() + separator.len() > self.max_bytes;
        page.truncated = line == Line::Cut || fitting.len() < text.len() || no_room;
        if !no_room {
            page.content.push_str(separator);
            page.content.push_str(fitting);
        }
        if line == Line::Cut && self.counts_all {
            self.lines.skip()?;
        }
        Ok(true)
    }

    /// Returns the number of lines in the file, if its end is reached or near.
    fn count(&mut self) -> io::Result<Option<u64>> {
        while self.counts_all && self.lines.skip()? {
            self.passed += 1;
        }
        Ok(self.lines.at_end()?.then_some(self.passed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(offset: u64, limit: u64, max_bytes: u64) -> ReadRequest {
        ReadRequest { line_offset: offset, line_limit: limit, max_bytes, ..ReadRequest::default() }
    }

    fn read_bytes(content: impl AsRef<[u8]>, request: &ReadRequest) -> Result<Content, Failure> {
        let content = content.as_ref();
        super::page(request, content, content.len() as u64).map_err(|error| match error {
            NoPage::Refused(failure) => failure,
            NoPage::Unreadable(error) => panic!("{error}"),
        })
    }

    fn page(content: impl AsRef<[u8]>, request: &ReadRequest) -> TextPage {
        match read_bytes(content, request).unwrap() {
            Content::Text(page) => page,
            Content::Binary(_) => panic!("it must be text"),
        }
    }

    fn shown(page: &TextPage) -> (&str, u64, u64, bool) {
        (&page.content, page.start_line, page.end_line, page.more)
    }

    #[test]
    fn all_line_endings_become_newlines_without_a_last_one() {
        let page = page("one\r\ntwo\rthree\n", &ask(0, 100, 0));
        assert_eq!(shown(&page), ("one\ntwo\nthree", 1, 3, false));
        assert_eq!(page.total_lines, Some(3));
        assert!(!page.truncated && !page.empty_file);
    }

    #[test]
    fn a_page_begins_at_the_offset_and_ends_at_the_limit() {
        let page = page("1\n2\n3\n4\n5\n", &ask(1, 2, 0));
        assert_eq!(shown(&page), ("2\n3", 2, 3, true));
        assert_eq!(page.total_lines, Some(5));
    }

    #[test]
    fn a_page_that_ends_with_the_file_has_no_more() {
        assert_eq!(shown(&page("1\n2\n3", &ask(1, 2, 0))), ("2\n3", 2, 3, false));
    }

    #[test]
    fn empty_lines_are_lines() {
        let page = page("\n\n\n", &ask(0, 10, 0));
        assert_eq!(shown(&page), ("\n\n", 1, 3, false));
    }

    #[test]
    fn offset_beyond_the_end_is_an_error_with_the_number_of_lines() {
        for offset in [3, 99] {
            let failure = read_bytes("1\n2\n3\n", &ask(offset, 1, 0)).unwrap_err();
            assert_eq!(failure.code(), ErrorCode::InvalidArgument);
            assert_eq!(failure.message(), format!("Line offset {offset} exceeds file length (3 lines)"));
        }
    }

    #[test]
    fn an_empty_file_and_a_limit_of_no_lines_give_empty_pages() {
        let empty = page("", &ask(0, 10, 0));
        assert!(empty.empty_file);
        assert_eq!(shown(&empty), ("", 0, 0, false));
        assert_eq!(page("text", &ask(7, 0, 0)), TextPage::default());
    }

    #[test]
    fn a_line_that_does_not_fit_is_cut_and_not_counted() {
        let page = page("12345\n67890\nabc\n", &ask(0, 10, 8));
        assert_eq!(shown(&page), ("12345\n67", 1, 1, true));
        assert!(page.truncated);
        assert_eq!(page.total_lines, Some(3));
    }

    #[test]
    fn a_page_that_is_just_full_is_not_cut() {
        let page = page("12345\n67\n", &ask(0, 10, 8));
        assert_eq!(shown(&page), ("12345\n67", 1, 2, false));
        assert!(!page.truncated);
    }

    #[test]
    fn a_full_page_with_nothing_of_the_next_line_is_truncated() {
        let page = page("12345678\n\nx", &ask(0, 10, 8));
        assert_eq!(shown(&page), ("12345678", 1, 1, true));
        assert!(page.truncated);
    }

    #[test]
    fn a_first_line_that_does_not_fit_is_cut_at_a_character_and_counted() {
        let page = page("äöü\nnext\n", &ask(0, 10, 3));
        assert_eq!(shown(&page), ("ä", 1, 1, true));
        assert!(page.truncated);
        assert_eq!(page.total_lines, Some(2));
    }

    #[test]
    fn content_that_does_not_begin_with_utf8_is_binary() {
        assert_eq!(
            read_bytes(b"\xff\xfe\n", &ask(0, 10, 0)).unwrap(),
            Content::Binary(b"\xff\xfe\n".as_slice().into())
        );
        // A character cut by the end of the file makes it binary; one cut by the end of the sample does not.
        assert!(matches!(read_bytes(b"ab\xc3", &ask(0, 10, 0)).unwrap(), Content::Binary(_)));
        let long = format!("{}ä\n", "x".repeat(SAMPLE_BYTES - 1));
        assert_eq!(page(&long, &ask(0, 10, 0)).content, long.trim_end());
    }

    #[test]
    fn bytes_that_are_not_utf8_further_on_are_replaced_within_the_limit() {
        let mut content = vec![b'x'; SAMPLE_BYTES];
        content.extend([0xff; 100]);
        let page = page(&content, &ask(0, 10, SAMPLE_BYTES as u64 + 8));
        assert_eq!(page.content.len(), SAMPLE_BYTES + 6);
        assert!(page.content.ends_with('\u{fffd}') && page.truncated);
    }

    #[test]
    fn known_binary_file_is_complete_or_too_large() {
        let request = |max_bytes| ReadRequest { binary: true, max_bytes, ..ReadRequest::default() };
        assert_eq!(read_bytes("text", &request(4)).unwrap(), Content::Binary("text".into()));
        let failure = read_bytes("text!", &request(4)).unwrap_err();
        assert_eq!(failure.code(), ErrorCode::TooLarge);
        assert_eq!(failure.message(), "Binary file exceeds maximum preview size of 4 bytes");
    }

    #[test]
    fn lines_of_a_large_file_are_counted_if_its_end_is_reached() {
        let content = "0123456789\n".repeat(100_000);
        assert_eq!(page(&content, &ask(99_999, 10, 0)).total_lines, Some(100_000));
        assert_eq!(page(&content, &ask(99_999, 1, 0)).total_lines, Some(100_000));
        assert_eq!(page(&content, &ask(99_998, 1, 0)).total_lines, None);
    }

    #[test]
    fn consecutive_pages_are_the_whole_file() {
        let mut random = fastrand::Rng::with_seed(5);
        for round in 0..100 {
            let words = ["", "a", "ä", "long line ", "\u{1f600}"];
            let line = |random: &mut fastrand::Rng| {
                (0..random.usize(0..6)).map(|_| *random.choice(&words).unwrap()).collect::<String>()
            };
            let lines: Vec<String> = (0..random.usize(1..30)).map(|_| line(&mut random)).collect();
            let ending = *random.choice(&["\n", "\r\n", "\r"]).unwrap();
            let content = lines.join(ending) + ending;
            let (mut offset, mut shown) = (0, Vec::new());
            loop {
                // All pages are large enough for the longest line.
                let page = page(&content, &ask(offset, random.u64(1..9), random.u64(70..200)));
                let whole = page.content.split('\n').take(usize::try_from(page.end_line - offset).unwrap());
                shown.extend(whole.map(str::to_owned));
                offset = page.end_line;
                if !page.more {
                    break;
                }
            }
            assert_eq!(shown, lines, "round {round}");
        }
    }
}
