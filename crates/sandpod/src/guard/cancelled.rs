//! The output of commands that their caller cancelled.

use sandpod_text::output::{add_line, timed_out};

/// Last line of the output of a command that its caller cancelled.
pub const CANCELLED: &str = "Command cancelled";

/// Marks an output as that of a cancelled command. The guest marks it as that of a command that timed out.
pub(super) fn mark_cancelled(output: &mut Vec<u8>) {
    let last_line = output.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
    let line_of_guest = timed_out(0.0);
    if output[last_line..].starts_with(line_of_guest.trim_end_matches("0s").as_bytes()) {
        output.truncate(last_line);
    }
    add_line(output, CANCELLED);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_timeout_is_replaced_and_other_lines_stay() {
        let marked = |output: &str| {
            let mut output = output.as_bytes().to_vec();
            mark_cancelled(&mut output);
            String::from_utf8(output).unwrap()
        };
        assert_eq!(marked("partial\nCommand timed out after 3s"), "partial\nCommand cancelled");
        assert_eq!(marked("Command timed out after 1.5s"), "Command cancelled");
        assert_eq!(marked("partial"), "partial\nCommand cancelled");
        assert_eq!(marked(""), "Command cancelled");
    }
}
