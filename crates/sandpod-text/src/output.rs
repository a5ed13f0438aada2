//! Truncation of command output, and messages in its last line.

/// Returns the length without a UTF-8 character that is incomplete at the end.
///
/// ```
/// use sandpod_text::output::whole_characters;
///
/// assert_eq!(whole_characters("naï".as_bytes()), 4);
/// assert_eq!(whole_characters(&"naï".as_bytes()[..3]), 2);
/// ```
#[must_use]
pub fn whole_characters(bytes: &[u8]) -> usize {
    for (back, byte) in bytes.iter().rev().take(4).enumerate() {
        let length = byte.leading_ones() as usize;
        match length {
            1 => {}
            0 => return bytes.len(),
            _ if length > back + 1 => return bytes.len() - back - 1,
            _ => return bytes.len(),
        }
    }
    bytes.len()
}

/// Appends a last line to an output, without a line ending.
///
/// ```
/// let mut output = b"partial".to_vec();
/// sandpod_text::output::add_line(&mut output, &sandpod_text::output::timed_out(1.5));
/// assert_eq!(output, b"partial\nCommand timed out after 1.5s");
/// ```
pub fn add_line(output: &mut Vec<u8>, line: &str) {
    if output.last().is_some_and(|last| *last != b'\n') {
        output.push(b'\n');
    }
    output.extend_from_slice(line.as_bytes());
}

/// Returns the last line of the output of a command that timed out.
#[must_use]
pub fn timed_out(seconds: f64) -> String {
    format!("Command timed out after {seconds}s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_cut_between_characters() {
        let text = "aé€🦀".as_bytes();
        let lengths: Vec<_> = (0..=text.len()).map(|end| whole_characters(&text[..end])).collect();
        assert_eq!(lengths, [0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10]);
    }

    #[test]
    fn cut_text_stays_text_and_loses_less_than_one_character() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..500 {
            let text: String = (0..random.usize(1..50)).map(|_| random.char(..)).collect();
            let end = random.usize(..=text.len());
            let cut = &text.as_bytes()[..whole_characters(&text.as_bytes()[..end])];
            assert!(std::str::from_utf8(cut).is_ok(), "{cut:?}");
            assert!(end - cut.len() < 4);
            assert!(!text.is_char_boundary(end) || cut.len() == end);
        }
    }

    #[test]
    fn binary_output_is_cut_anywhere() {
        assert_eq!(whole_characters(&[0x80; 9]), 9);
    }
}
