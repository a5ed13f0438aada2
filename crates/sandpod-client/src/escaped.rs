//! Escaping of text from a guest.

use std::fmt::{Display, Formatter, Result, Write};

/// The number of characters displayed of one text.
const MOST: usize = 2000;

/// Displays text from a guest. Terminal escapes are made visible, and the length is limited.
///
/// ```
/// assert_eq!(sandpod_client::Escaped("a\u{1b}[2Jb").to_string(), "a\\u{1b}[2Jb");
/// ```
pub struct Escaped<'a>(
    /// The text.
    pub &'a str,
);

impl Escaped<'_> {
    /// Escapes the whole text, whatever its length. For results, which must be complete.
    ///
    /// ```
    /// let long = "x".repeat(1 << 20);
    /// assert_eq!(sandpod_client::Escaped(&long).whole(), long);
    /// ```
    #[must_use]
    pub fn whole(&self) -> String {
        let mut shown = String::with_capacity(self.0.len());
        // Writing to a string cannot fail.
        let _ = show(self.0.chars(), &mut shown);
        shown
    }
}

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        show(self.0.chars().take(MOST), f)?;
        if self.0.chars().nth(MOST).is_some() { f.write_str("…") } else { Ok(()) }
    }
}

fn show(characters: impl Iterator<Item = char>, to: &mut impl Write) -> Result {
    for character in characters {
        match character {
            '\n' | '\t' => to.write_char(character)?,
            _ if character.is_control() || is_invisible(character) => {
                write!(to, "{}", character.escape_default())?;
            }
            _ => to.write_char(character)?,
        }
    }
    Ok(())
}

/// Characters that reorder or hide the text around them.
fn is_invisible(character: char) -> bool {
    matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_escapes_are_made_visible() {
        let shown = Escaped("red \u{1b}[31mtext\u{202e}\u{9b}é\n").to_string();
        assert_eq!(shown, "red \\u{1b}[31mtext\\u{202e}\\u{9b}é\n");
    }

    #[test]
    fn a_long_text_is_cut() {
        let shown = Escaped(&"x".repeat(1 << 20)).to_string();
        assert_eq!(shown.chars().count(), MOST + 1);
        assert!(shown.ends_with('…'));
    }

    #[test]
    fn whole_text_is_escaped_without_a_limit() {
        let text = format!("{}\u{1b}[2J", "x".repeat(3 * MOST));
        assert_eq!(Escaped(&text).whole(), format!("{}\\u{{1b}}[2J", "x".repeat(3 * MOST)));
    }
}
