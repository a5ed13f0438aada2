//! Forms with files in them (`multipart/form-data`), read as they arrive: of a file of any size only a
//! piece is in memory.
//!
//! The `multer` crate cannot replace it: it buffers all that has arrived, does not limit the size of headers, and keeps the
//! backslashes of quoted file names.

use bytes::{Buf as _, Bytes, BytesMut};
use memchr::memmem;

use super::body::Content;
use super::http_error::HttpError;

/// Maximum size of a part's headers.
const MAX_HEAD_BYTES: usize = 8 << 10;
const MAX_HEADERS: usize = 16;
/// Maximum length of a boundary, from RFC 2046.
const MAX_BOUNDARY_BYTES: usize = 70;

/// A form whose parts are read in order. It is itself the [`Content`] of the current part.
pub(super) struct Multipart<C> {
    source: C,
    buffer: BytesMut,
    /// Delimiter after a part's content.
    delimiter: Vec<u8>,
    /// Whether the current part has more content.
    in_part: bool,
}

/// The name of a part.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Head {
    pub(super) name: String,
    pub(super) filename: Option<String>,
}

impl<C: Content> Multipart<C> {
    /// Reads a form with the boundary from its content type.
    pub(super) fn new(source: C, boundary: &str) -> Self {
        // The first boundary is at the very beginning; all others follow a line end.
        let delimiter = [b"\r\n--", boundary.as_bytes()].concat();
        Self { source, buffer: BytesMut::from(&b"\r\n"[..]), delimiter, in_part: true }
    }

    /// Skips the rest of the current part, and returns the next part's head, or `None` at the end of the form.
    pub(super) async fn next_part(&mut self) -> Result<Option<Head>, HttpError> {
        while self.next().await?.is_some() {}
        self.fill(2).await?;
        match &self.buffer[..2] {
            b"--" => return Ok(None),
            b"\r\n" => {}
            _ => return Err(broken("a boundary is followed by other characters")),
        }
        // The line end stays in the buffer: together with the empty line after the headers it ends a part without headers.
        let end = loop {
            match memmem::find(&self.buffer, b"\r\n\r\n") {
                Some(end) => break end,
                None if self.buffer.len() > MAX_HEAD_BYTES => {
                    return Err(broken("a part's headers are too long"));
                }
                None => self.fill(self.buffer.len() + 1).await?,
            }
        };
        let head = self.buffer.split_to(end + 4);
        self.in_part = true;
        parse_head(&head[2..]).map(Some)
    }

    /// Reads until the buffer has `wanted` bytes.
    async fn fill(&mut self, wanted: usize) -> Result<(), HttpError> {
        while self.buffer.len() < wanted {
            let more = self.source.next().await?;
            self.buffer.extend_from_slice(&more.ok_or_else(|| broken("it ends in the middle"))?);
        }
        Ok(())
    }
}

impl<C: Content> Content for Multipart<C> {
    async fn next(&mut self) -> Result<Option<Bytes>, HttpError> {
        while self.in_part {
            if let Some(end) = memmem::find(&self.buffer, &self.delimiter) {
                let last = self.buffer.split_to(end).freeze();
                self.buffer.advance(self.delimiter.len());
                self.in_part = false;
                return Ok(Some(last).filter(|last| !last.is_empty()));
            }
            // The last bytes may be the beginning of a delimiter.
            let safe = self.buffer.len().saturating_sub(self.delimiter.len());
            if safe > 0 {
                return Ok(Some(self.buffer.split_to(safe).freeze()));
            }
            self.fill(self.buffer.len() + 1).await?;
        }
        Ok(None)
    }
}

/// Returns the boundary of a content type, if that is `multipart/form-data`.
pub(super) fn boundary(content_type: &str) -> Option<String> {
    let (kind, parameters) = content_type.split_once(';')?;
    let boundary = parameter(parameters, "boundary")?;
    let fits = (1..=MAX_BOUNDARY_BYTES).contains(&boundary.len());
    (kind.trim().eq_ignore_ascii_case("multipart/form-data") && fits).then_some(boundary)
}

fn parse_head(head: &[u8]) -> Result<Head, HttpError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let parsed = httparse::parse_headers(head, &mut headers);
    if !parsed.is_ok_and(|parsed| parsed.is_complete()) {
        return Err(broken("a part's headers are invalid"));
    }
    let disposition = headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-disposition"));
    let disposition = disposition.map(|header| std::str::from_utf8(header.value)).transpose();
    let disposition = disposition.map_err(|_| broken("a part's name is not UTF-8"))?;
    let Some((_, parameters)) = disposition.and_then(|value| value.split_once(';')) else {
        return Ok(Head::default());
    };
    Ok(Head {
        name: parameter(parameters, "name").unwrap_or_default(),
        filename: parameter(parameters, "filename"),
    })
}

/// Returns a parameter of a header, `name=value` or `name="value"`.
fn parameter(mut parameters: &str, wanted: &str) -> Option<String> {
    loop {
        let (name, rest) = parameters.split_once('=')?;
        let (value, rest) = if let Some(quoted) = rest.trim_start().strip_prefix('"') {
            unquote(quoted)?
        } else {
            let (value, rest) = rest.split_once(';').unwrap_or((rest, ""));
            (value.trim().to_owned(), rest)
        };
        if name.trim_matches([' ', '\t', ';']).eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        parameters = rest;
    }
}

/// Returns a quoted value, and the text after it.
fn unquote(quoted: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((index, char)) = chars.next() {
        match char {
            '"' => return Some((value, &quoted[index + 1..])),
            '\\' => value.push(chars.next()?.1),
            char => value.push(char),
        }
    }
    None
}

fn broken(why: &str) -> HttpError {
    HttpError::bad_request(format!("the form is broken: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Content in pieces of a given size.
    struct Pieces(Vec<u8>, usize);

    impl Content for Pieces {
        async fn next(&mut self) -> Result<Option<Bytes>, HttpError> {
            let size = self.1.min(self.0.len());
            let piece: Bytes = self.0.drain(..size).collect();
            Ok(Some(piece).filter(|piece| !piece.is_empty()))
        }
    }

    async fn parts(form: &[u8], size: usize) -> Result<Vec<(Head, Vec<u8>)>, HttpError> {
        let mut form = Multipart::new(Pieces(form.to_vec(), size), "B");
        let mut parts = Vec::new();
        while let Some(head) = form.next_part().await? {
            let mut content = Vec::new();
            while let Some(bytes) = form.next().await? {
                content.extend_from_slice(&bytes);
            }
            parts.push((head, content));
        }
        Ok(parts)
    }

    fn head(name: &str, filename: Option<&str>) -> Head {
        Head { name: name.to_owned(), filename: filename.map(str::to_owned) }
    }

    #[tokio::test]
    async fn parts_are_found_wherever_chunks_end() {
        let form = "ignored\r\n--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n-\r\n--\r\n\
                    --B\r\ncontent-type: text/plain\r\nContent-Disposition: form-data; name=file; \
                    filename=\"d/\u{e9} \\\"x\\\"; y\"\r\n\r\n\r\n--B\r\n\r\nno head\r\n--B--\r\nignored";
        for size in 1..form.len() {
            let found = parts(form.as_bytes(), size).await.unwrap();
            let expected = [
                (head("a", None), b"1\r\n-\r\n--".to_vec()),
                (head("file", Some("d/\u{e9} \"x\"; y")), Vec::new()),
                (head("", None), b"no head".to_vec()),
            ];
            assert_eq!(found, expected, "in pieces of {size}");
        }
    }

    #[tokio::test]
    async fn a_broken_form_is_refused() {
        let endless = format!("--B\r\nX: {}", "x".repeat(2 * MAX_HEAD_BYTES));
        let many = format!("--B\r\n{}\r\n", "X: y\r\n".repeat(MAX_HEADERS + 1));
        for form in
            ["", "--B", "--B\r\n", "--Bx", "--B\r\n\r\ncontent", "--B\r\nno header\r\n\r\n", &endless, &many]
        {
            let error = parts(form.as_bytes(), 7).await.unwrap_err();
            assert!(error.message.starts_with("the form is broken"), "{form}: {error:?}");
        }
    }

    #[tokio::test]
    async fn a_large_part_is_not_buffered_completely() {
        let form = [&b"--B\r\n\r\n"[..], &vec![b'\r'; 1 << 20], b"\r\n--B--"].concat();
        let mut form = Multipart::new(Pieces(form, 4096), "B");
        form.next_part().await.unwrap();
        let mut length = 0;
        while let Some(bytes) = form.next().await.unwrap() {
            length += bytes.len();
            assert!(form.buffer.len() < 8192);
        }
        assert_eq!(length, 1 << 20);
    }

    #[test]
    fn only_a_form_content_type_has_a_boundary() {
        assert_eq!(boundary("multipart/form-data; boundary=abc").unwrap(), "abc");
        assert_eq!(boundary("Multipart/Form-Data; charset=x; BOUNDARY=\"a b\"").unwrap(), "a b");
        let long = format!("multipart/form-data; boundary={}", "x".repeat(71));
        for content_type in
            ["", "text/plain; boundary=abc", "multipart/form-data", "multipart/form-data; boundary=", &long]
        {
            assert_eq!(boundary(content_type), None, "{content_type}");
        }
    }
}
