//! Outputs that are too long for a conversation. A file keeps the output, and the model gets its first and last lines.

/// The number of bytes of one output that the guest keeps.
pub const MAX_CAPTURE_BYTES: u64 = 7 << 20;
/// The number of bytes of one output that a result holds, as for `execute`.
pub const MAX_INLINE_BYTES: usize = 1 << 20;

/// The number of lines that a preview shows of the beginning and of the end.
const LINES: usize = 5;
/// The number of bytes that a preview shows of the beginning and of the end.
const BYTES: usize = 2000;

/// The start and the end of an output, with a marker between them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Preview {
    /// The text for the model.
    pub text: String,
    /// Whether the marker names the number of lines that are left out.
    pub has_marker: bool,
}

/// Returns the number of bytes to capture: `max_bytes` if it is set, up to the guest's limit.
#[must_use]
pub fn capture_limit(max_bytes: Option<u64>) -> u64 {
    max_bytes.filter(|max_bytes| *max_bytes > 0).unwrap_or(MAX_CAPTURE_BYTES).min(MAX_CAPTURE_BYTES)
}

/// Returns the start of an output that is too long for a result. None if the output fits.
#[must_use]
pub fn truncated(output: &str) -> Option<&str> {
    let is_boundary = |end: &usize| output.is_char_boundary(*end);
    let end = (0..=MAX_INLINE_BYTES).rev().find(is_boundary).filter(|_| output.len() > MAX_INLINE_BYTES)?;
    Some(&output[..end])
}

/// Returns the first and last lines of a captured output.
#[must_use]
pub fn preview(output: &str) -> Preview {
    let content = output.as_bytes();
    let ends: Vec<_> = line_ends(content);
    let omitted = ends.len().saturating_sub(2 * LINES);
    if omitted == 0 {
        let head = whole_line(&content[..content.len().min(2 * BYTES)]);
        let text = format!("{head}... [output clipped here; {} bytes were captured] ...\n", content.len());
        return Preview { text, has_marker: false };
    }
    let (head, tail) = (&content[..ends[LINES - 1]], &content[ends[ends.len() - LINES - 1]..]);
    let (head, tail) = (&head[..head.len().min(BYTES)], &tail[tail.len().saturating_sub(BYTES)..]);
    let text = format!("{}... [{omitted} lines truncated] ...\n{}", whole_line(head), whole_line(tail));
    Preview { text, has_marker: true }
}

/// Returns the end of each line. A carriage return without a newline ends a line, and so does the end of the output.
fn line_ends(content: &[u8]) -> Vec<usize> {
    let is_end = |at: usize| match content[at] {
        b'\n' => true,
        b'\r' => content.get(at + 1) != Some(&b'\n'),
        _ => at + 1 == content.len(),
    };
    (0..content.len()).filter(|at| is_end(*at)).map(|at| at + 1).collect()
}

/// Converts a part of the output to text that ends with a newline, even if its last line is cut.
fn whole_line(part: &[u8]) -> String {
    let text = String::from_utf8_lossy(part).into_owned();
    if text.ends_with('\n') { text } else { text + "\n" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preview_shows_the_first_and_last_lines() {
        let lines = (1..=20).map(|number| number.to_string()).collect::<Vec<_>>().join("\n") + "\n";
        let preview = preview(&lines);
        assert_eq!(preview.text, "1\n2\n3\n4\n5\n... [10 lines truncated] ...\n16\n17\n18\n19\n20\n");
        assert!(preview.has_marker);
    }

    #[test]
    fn preview_of_few_long_lines_shows_their_start() {
        let preview = preview(&"é".repeat(5000));
        assert_eq!(
            preview.text,
            format!("{}\n... [output clipped here; 10000 bytes were captured] ...\n", "é".repeat(2000))
        );
        assert!(!preview.has_marker);
    }

    #[test]
    fn long_output_is_cut_at_a_character_boundary() {
        assert_eq!(truncated("short"), None);
        let long = format!("a{}", "é".repeat(MAX_INLINE_BYTES));
        assert_eq!(truncated(&long).map(str::len), Some(MAX_INLINE_BYTES - 1));
    }

    #[test]
    fn capture_limit_never_exceeds_that_of_the_guest() {
        assert_eq!(capture_limit(None), MAX_CAPTURE_BYTES);
        assert_eq!(capture_limit(Some(u64::MAX)), MAX_CAPTURE_BYTES);
        assert_eq!(capture_limit(Some(10)), 10);
    }
}
