//! Rules of text searches: valid patterns, and how results are displayed.

use prost::Message as _;
use sandpod_protocol::v1::{ErrorCode, GrepMatch, GrepRequest};
use sandpod_protocol::{Failure, limits};

use crate::fitting;

/// Maximum number of bytes returned of a line.
pub const MAX_LINE_BYTES: usize = 64 << 10;

/// Rejects a text that no line can contain.
///
/// ```
/// use sandpod_protocol::v1::GrepRequest;
///
/// let request = |text: &str| GrepRequest { pattern: text.to_owned(), ..GrepRequest::default() };
/// assert!(sandpod_text::grep::check(&request("fn main()")).is_ok());
/// assert!(sandpod_text::grep::check(&request("two\nlines")).is_err());
/// ```
pub fn check(request: &GrepRequest) -> Result<(), Failure> {
    if request.pattern.len() > limits::MAX_PATTERN_BYTES {
        return Err(wrong(&format!("it is longer than {} bytes", limits::MAX_PATTERN_BYTES)));
    }
    if request.pattern.contains('\n') {
        return Err(wrong("it has more than one line, and lines are searched one by one"));
    }
    Ok(())
}

/// Returns the error for a text that cannot be searched for.
#[must_use]
pub fn wrong(why: &str) -> Failure {
    Failure::new(ErrorCode::InvalidArgument, format!("the text can't be searched for: {why}"))
}

/// Returns a matching line as text, without its line ending and with a maximum length.
///
/// ```
/// assert_eq!(sandpod_text::grep::shown(b"caf\xc3\xa9\r\n"), "café");
/// ```
#[must_use]
pub fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(MAX_LINE_BYTES + 2)]);
    fitting(text.trim_end_matches(['\n', '\r']), MAX_LINE_BYTES).to_owned()
}

/// Collects matching lines up to a limit.
#[derive(Clone, Debug)]
pub struct Found {
    /// The lines.
    pub matches: Vec<GrepMatch>,
    /// A line was dropped because the limit was reached.
    pub full: bool,
    room: Room,
}

/// The remaining room.
#[derive(Clone, Copy, Debug)]
struct Room {
    matches: u64,
    bytes: u64,
}

impl Found {
    /// Creates an empty collection with the limits of a request.
    ///
    /// ```
    /// use sandpod_protocol::v1::{GrepMatch, GrepRequest};
    ///
    /// let mut found = sandpod_text::grep::Found::nothing(&GrepRequest { max_count: 1, ..GrepRequest::default() });
    /// found.add(GrepMatch::default());
    /// assert!(!found.full);
    /// found.add(GrepMatch::default());
    /// assert!(found.full && found.matches.len() == 1);
    /// ```
    #[must_use]
    pub fn nothing(request: &GrepRequest) -> Self {
        let matches = match request.max_count {
            0 => limits::MAX_GREP_MATCHES,
            asked => asked.min(limits::MAX_GREP_MATCHES),
        };
        Self { matches: Vec::new(), full: false, room: Room { matches, bytes: limits::MAX_OUTPUT_BYTES } }
    }

    /// Creates an empty collection with the remaining room of this one.
    #[must_use]
    pub fn beside(&self) -> Self {
        Self { matches: Vec::new(), full: false, room: self.room }
    }

    /// The number of lines that still fit.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.room.matches
    }

    /// Adds a line if it fits. Concurrent searches may have used the room meanwhile.
    pub fn add(&mut self, line: GrepMatch) {
        match self.room.without(&line) {
            Some(room) => {
                self.room = room;
                self.matches.push(line);
            }
            None => self.full = true,
        }
    }
}

impl Room {
    /// The room after adding this line; `None` if it does not fit.
    fn without(self, line: &GrepMatch) -> Option<Self> {
        let matches = self.matches.checked_sub(1)?;
        let bytes = self.bytes.checked_sub(line.encoded_len() as u64)?;
        Some(Self { matches, bytes })
    }
}
