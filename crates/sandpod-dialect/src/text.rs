//! Pages of a text, and replacements in one, as a guest makes them.

use sandpod_protocol::Failure;
use sandpod_protocol::v1::read_response::Content;
use sandpod_protocol::v1::{ErrorCode, ReadRequest, TextPage};

/// How much of a file must be UTF-8 for it to be text.
const SAMPLE_BYTES: usize = 8192;

/// What a file's content is to who asks for a page of it.
pub(crate) fn page(request: &ReadRequest, content: &[u8], max_bytes: u64) -> Result<Content, Failure> {
    if content.is_empty() {
        let page = TextPage { empty_file: true, total_lines: Some(0), ..TextPage::default() };
        return Ok(Content::Text(page));
    }
    if request.binary || !is_text(content) {
        if content.len() as u64 > max_bytes {
            let message = format!("Binary file exceeds maximum preview size of {max_bytes} bytes");
            return Err(Failure::new(ErrorCode::TooLarge, message));
        }
        return Ok(Content::Binary(content.to_vec().into()));
    }
    if request.line_limit == 0 {
        return Ok(Content::Text(TextPage::default()));
    }
    lines(request, &String::from_utf8_lossy(content), max_bytes).map(Content::Text)
}

fn is_text(content: &[u8]) -> bool {
    let sample = &content[..content.len().min(SAMPLE_BYTES)];
    match std::str::from_utf8(sample) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none() && sample.len() < content.len(),
    }
}

fn lines(request: &ReadRequest, text: &str, max_bytes: u64) -> Result<TextPage, Failure> {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let all: Vec<_> = text.strip_suffix('\n').unwrap_or(&text).split('\n').collect();
    let (total, offset) = (all.len() as u64, request.line_offset);
    if offset >= total {
        let message = format!("Line offset {offset} exceeds file length ({total} lines)");
        return Err(Failure::new(ErrorCode::InvalidArgument, message));
    }
    let room = usize::try_from(max_bytes).unwrap_or(usize::MAX);
    let mut page = TextPage { start_line: offset + 1, total_lines: Some(total), ..TextPage::default() };
    let mut passed = offset;
    let first = usize::try_from(offset).unwrap_or(usize::MAX);
    let wanted = usize::try_from(request.line_limit).unwrap_or(usize::MAX);
    for line in all.iter().skip(first).take(wanted) {
        let separator = if passed == offset { "" } else { "\n" };
        passed += 1;
        let left = room.saturating_sub(page.content.len() + separator.len());
        if line.len() > left {
            page.truncated = true;
            page.content.push_str(separator);
            page.content.push_str(fitting(line, left));
            break;
        }
        page.content.push_str(separator);
        page.content.push_str(line);
    }
    // A first line that does not fit counts, or nobody would get past it.
    page.end_line = if page.truncated { (passed - 1).max(offset + 1) } else { passed };
    page.more = page.end_line < total;
    Ok(page)
}

/// The beginning of a text that fits into `room` bytes and ends with a whole character.
pub(crate) fn fitting(text: &str, room: usize) -> &str {
    let mut end = room.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The text with the replacements made, and how many they are. Line endings of the request may differ from the file's.
pub(crate) fn replace(text: &str, old: &str, new: &str, all: bool) -> Result<(String, u64), Failure> {
    if old.is_empty() {
        let message = "old_string cannot be empty. Provide the exact text to replace.";
        return Err(Failure::new(ErrorCode::InvalidArgument, message));
    }
    let as_sent = |part: &str| part.to_owned();
    let with_crlf = |part: &str| part.replace('\n', "\r\n");
    let with_lf = |part: &str| part.replace("\r\n", "\n");
    let variants: [&dyn Fn(&str) -> String; 3] = [&as_sent, &with_crlf, &with_lf];
    for variant in variants {
        let (old, new) = (variant(old), variant(new));
        match text.matches(&old).count() {
            0 => {}
            2.. if !all => {
                let message = "the text appears multiple times: add lines around it, or replace all";
                return Err(Failure::new(ErrorCode::ManyMatches, message));
            }
            count => return Ok((text.replace(&old, &new), count as u64)),
        }
    }
    Err(Failure::new(ErrorCode::NoMatch, "the text is not in the file: read the file and copy it exactly"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &str, offset: u64, limit: u64, max_bytes: u64) -> TextPage {
        let request = ReadRequest { line_offset: offset, line_limit: limit, ..ReadRequest::default() };
        match page(&request, content.as_bytes(), max_bytes).unwrap() {
            Content::Text(page) => page,
            Content::Binary(_) => panic!("it is text"),
        }
    }

    #[test]
    fn a_page_begins_at_the_offset_and_ends_at_the_limit() {
        let page = read("one\ntwo\r\nthree\n", 1, 1, 100);
        assert_eq!((&page.content[..], page.start_line, page.end_line), ("two", 2, 2));
        assert_eq!((page.total_lines, page.more, page.truncated), (Some(3), true, false));
        assert!(!read("one\ntwo", 0, 2, 100).more);
        assert!(read("", 0, 2, 100).empty_file);
    }

    #[test]
    fn a_line_that_does_not_fit_is_cut_at_a_character() {
        let page = read("one\ntwö\n", 0, 9, 6);
        assert_eq!((&page.content[..], page.end_line, page.truncated, page.more), ("one\ntw", 1, true, true));
    }

    #[test]
    fn what_is_no_text_is_whole_or_too_large() {
        let request = ReadRequest { line_limit: 1, ..ReadRequest::default() };
        assert!(matches!(page(&request, b"\xff\0", 9).unwrap(), Content::Binary(_)));
        assert_eq!(page(&request, b"\xff\0", 1).unwrap_err().code(), ErrorCode::TooLarge);
    }

    #[test]
    fn a_replacement_is_the_only_one_or_all() {
        assert_eq!(replace("a b a", "b", "c", false).unwrap(), ("a c a".to_owned(), 1));
        assert_eq!(replace("a b a", "a", "c", true).unwrap(), ("c b c".to_owned(), 2));
        assert_eq!(replace("a b a", "a", "c", false).unwrap_err().code(), ErrorCode::ManyMatches);
        assert_eq!(replace("a", "x", "c", false).unwrap_err().code(), ErrorCode::NoMatch);
        assert_eq!(replace("a\r\nb", "a\nb", "c\nd", false).unwrap().0, "c\r\nd");
    }
}
