//! Fills placeholders of manifests and validates the values.

use crate::exit::{Failure, Result};

/// The maximum lengths of names.
pub(crate) const MAX_NAMESPACE: usize = 63;
pub(crate) const MAX_LABEL: usize = 63;
pub(crate) const MAX_NAME: usize = 253;
/// The Jobs of a CronJob have its name with a dash and a timestamp.
pub(crate) const MAX_CRON_JOB: usize = 52;
/// The most characters of an invalid value that a message quotes.
const MAX_QUOTED: usize = 80;

/// Replaces placeholders by values. A placeholder is replaced only where it is the whole value of a line; comments are
/// unchanged.
pub(crate) fn fill(file: &str, values: &[(&str, &str)]) -> String {
    file.lines().map(|line| fill_line(line, values) + "\n").collect()
}

fn fill_line(line: &str, values: &[(&str, &str)]) -> String {
    let content = line.split_once(" #").map_or(line, |(content, _)| content).trim_end();
    let Some((before, word)) = content.rsplit_once(' ').filter(|(before, _)| before.ends_with([':', '-']))
    else {
        return line.to_owned();
    };
    match values.iter().find(|(place, _)| *place == word) {
        // Always quoted, because 123, null and on are valid names.
        Some((_, value)) => format!("{before} {value:?}{}", &line[content.len()..]),
        None => line.to_owned(),
    }
}

/// Rejects an invalid name of a namespace.
pub(crate) fn check_namespace(name: &str) -> Result<()> {
    if is_label(name) && name.len() <= MAX_NAMESPACE {
        return Ok(());
    }
    Err(Failure::usage(
        format!("{} is not a valid namespace name.", quoted(name)),
        format!(
            "Use up to {MAX_NAMESPACE} lowercase letters, digits and '-'; start and end with a letter or digit."
        ),
    ))
}

/// Rejects an invalid name of an object.
pub(crate) fn check_name(what: &str, name: &str, longest: usize) -> Result<()> {
    if name.split('.').all(is_label) && name.len() <= longest {
        return Ok(());
    }
    Err(Failure::usage(
        format!("{} is not a valid name for {what}.", quoted(name)),
        format!(
            "Use up to {longest} lowercase letters, digits, '-' and '.'; start and end each part with a letter or digit."
        ),
    ))
}

/// Rejects an image reference with invalid characters.
pub(crate) fn check_image(image: &str) -> Result<()> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._-/:@[]".contains(letter);
    if !image.is_empty() && image.chars().all(is_plain) {
        return Ok(());
    }
    Err(Failure::usage(
        format!("{} is not a valid image reference.", quoted(image)),
        "Use a reference as for docker pull: registry.example.com/team/image:1.2",
    ))
}

/// Reports whether a text is a DNS label, of any length.
fn is_label(text: &str) -> bool {
    let is_inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
    let is_outer = |byte: Option<&u8>| byte.is_some_and(|byte| is_inner(byte) && *byte != b'-');
    let bytes = text.as_bytes();
    bytes.iter().all(is_inner) && is_outer(bytes.first()) && is_outer(bytes.last())
}

fn quoted(text: &str) -> String {
    format!("{:?}", text.chars().take(MAX_QUOTED).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placeholder_is_replaced_only_where_it_is_a_whole_value() {
        let file =
            "# NAME\nname: NAME # NAME\nnames: NAMES\nother: my-NAME\nlist:\n  - NAME\n  # - NAME\nNAME: x\n";
        let filled = "# NAME\nname: \"on\" # NAME\nnames: NAMES\nother: my-NAME\nlist:\n  - \"on\"\n  # - NAME\nNAME: x\n";
        assert_eq!(fill(file, &[("NAME", "on")]), filled);
    }

    #[test]
    fn a_value_equal_to_another_placeholder_is_not_replaced() {
        let filled = fill("a: A\nb: B\n", &[("A", "B"), ("B", "c")]);
        assert_eq!(filled, "a: \"B\"\nb: \"c\"\n");
    }

    #[test]
    fn invalid_names_are_rejected_with_the_rule() {
        for name in ["agents", "123", "null", "a-b", &"a".repeat(63)] {
            check_namespace(name).unwrap();
        }
        for name in ["", "Bad NS", "a\nb: c", "-a", "a-", "a.b", "é", &"a".repeat(64)] {
            let message = check_namespace(name).unwrap_err().to_string();
            assert!(
                message.contains("is not a valid namespace name") && message.contains("lowercase"),
                "{message}"
            );
            assert!(!message.contains("a\nb"), "it is quoted on one line: {message}");
        }
        check_name("a SandboxTemplate", "python.v3", MAX_NAME).unwrap();
        for name in ["", "a..b", "a.-b", "A", &"a".repeat(254)] {
            check_name("a SandboxTemplate", name, MAX_NAME).unwrap_err();
        }
    }

    #[test]
    fn an_image_reference_with_blanks_or_quotes_is_rejected() {
        for image in ["busybox", "python:3.12-slim", "[::1]:5000/a/b_c@sha256:0f"] {
            check_image(image).unwrap();
        }
        for image in ["", "a b", "x\"\n  y: z", "a\tb", "a'b", "a#b"] {
            let message = check_image(image).unwrap_err().to_string();
            assert!(message.contains("registry.example.com/team/image:1.2"), "{message}");
        }
    }
}
