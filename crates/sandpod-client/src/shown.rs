//! Showing what a guest said.

use std::fmt::{Display, Formatter, Result, Write as _};

/// The characters that are shown of one text.
const MOST: usize = 2000;

/// Text from a guest, for people: terminal escapes are visible and do nothing, and length is bounded.
///
/// ```
/// assert_eq!(sandpod_client::Shown("a\u{1b}[2Jb").to_string(), "a\\u{1b}[2Jb");
/// ```
pub struct Shown<'a>(
    /// What the guest said.
    pub &'a str,
);

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        for character in self.0.chars().take(MOST) {
            match character {
                '\n' | '\t' => f.write_char(character)?,
                _ if character.is_control() || is_invisible(character) => {
                    write!(f, "{}", character.escape_default())?;
                }
                _ => f.write_char(character)?,
            }
        }
        if self.0.chars().nth(MOST).is_some() { f.write_str("…") } else { Ok(()) }
    }
}

/// Characters that reorder or hide the text around them.
fn is_invisible(character: char) -> bool {
    matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_shown_and_not_sent_to_the_terminal() {
        let shown = Shown("red \u{1b}[31mtext\u{202e}\u{9b}é\n").to_string();
        assert_eq!(shown, "red \\u{1b}[31mtext\\u{202e}\\u{9b}é\n");
    }

    #[test]
    fn a_long_text_is_cut() {
        let shown = Shown(&"x".repeat(1 << 20)).to_string();
        assert_eq!(shown.chars().count(), MOST + 1);
        assert!(shown.ends_with('…'));
    }
}
