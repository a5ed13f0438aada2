//! Showing what a guest said.

use std::fmt::{Display, Formatter, Result, Write};

/// The characters that are shown of one text.
const MOST: usize = 2000;

/// Text from a guest, for people: terminal escapes are visible and do nothing, and length is bounded.
///
/// ```
/// assert_eq!(sandpod_client::Escaped("a\u{1b}[2Jb").to_string(), "a\\u{1b}[2Jb");
/// ```
pub struct Escaped<'a>(
    /// What the guest said.
    pub &'a str,
);

impl Escaped<'_> {
    /// All of it, however long: for results, which are asked for and come whole.
    ///
    /// ```
    /// let long = "x".repeat(1 << 20);
    /// assert_eq!(sandpod_client::Escaped(&long).whole(), long);
    /// ```
    #[must_use]
    pub fn whole(&self) -> String {
        let mut shown = String::with_capacity(self.0.len());
        // A string takes whatever is written to it.
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
    fn escapes_are_shown_and_not_sent_to_the_terminal() {
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
    fn a_result_is_whole_and_its_escapes_are_shown_all_the_same() {
        let text = format!("{}\u{1b}[2J", "x".repeat(3 * MOST));
        assert_eq!(Escaped(&text).whole(), format!("{}\\u{{1b}}[2J", "x".repeat(3 * MOST)));
    }
}
