//! What can be searched for in files, and what is shown of what is found.

use prost::Message as _;
use sandpod_protocol::v1::{ErrorCode, GrepMatch, GrepRequest};
use sandpod_protocol::{Failure, limits};

use crate::fitting;

/// What is shown of a line.
pub const MAX_LINE_BYTES: usize = 64 << 10;

/// Refuses a text that no line can hold.
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

/// Says why a text can't be searched for.
#[must_use]
pub fn wrong(why: &str) -> Failure {
    Failure::new(ErrorCode::InvalidArgument, format!("the text can't be searched for: {why}"))
}

/// What is shown of a line that was found: text without its ending, as much as there is room for.
///
/// ```
/// assert_eq!(sandpod_text::grep::shown(b"caf\xc3\xa9\r\n"), "café");
/// ```
#[must_use]
pub fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(MAX_LINE_BYTES + 2)]);
    fitting(text.trim_end_matches(['\n', '\r']), MAX_LINE_BYTES).to_owned()
}

/// The lines that were found, as many as there is room for.
#[derive(Clone, Debug)]
pub struct Found {
    /// The lines.
    pub matches: Vec<GrepMatch>,
    /// There is more than room.
    pub full: bool,
    room: Room,
}

/// What may still be found.
#[derive(Clone, Copy, Debug)]
struct Room {
    matches: u64,
    bytes: u64,
}

impl Found {
    /// Nothing yet, and the room that a request has.
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

    /// Nothing yet, and the room that is left here.
    #[must_use]
    pub fn beside(&self) -> Self {
        Self { matches: Vec::new(), full: false, room: self.room }
    }

    /// How many more there may be.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.room.matches
    }

    /// Takes a line if there is room: others may have found some meanwhile.
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
    /// What is left when this line is taken; none if it does not fit.
    fn without(self, line: &GrepMatch) -> Option<Self> {
        let matches = self.matches.checked_sub(1)?;
        let bytes = self.bytes.checked_sub(line.encoded_len() as u64)?;
        Some(Self { matches, bytes })
    }
}
