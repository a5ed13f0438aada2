//! What is put into manifests: what it may be, and how it gets there.

use crate::exit::{Failure, Result};

/// How long names may be, by what they name.
pub(crate) const MAX_NAMESPACE: usize = 63;
pub(crate) const MAX_LABEL: usize = 63;
pub(crate) const MAX_NAME: usize = 253;
/// A Job of a CronJob has its name, a dash and a time.
pub(crate) const MAX_CRON_JOB: usize = 52;
/// The most that is shown of a text that is refused.
const MAX_SHOWN: usize = 80;

/// A file with values in the places of its words. A word counts where it is the whole value of a line; comments and all
/// else stay as they are.
pub(crate) fn fill(file: &str, values: &[(&str, &str)]) -> String {
    file.lines().map(|line| fill_line(line, values) + "\n").collect()
}

fn fill_line(line: &str, values: &[(&str, &str)]) -> String {
    let said = line.split_once(" #").map_or(line, |(said, _)| said).trim_end();
    let Some((before, word)) = said.rsplit_once(' ').filter(|(before, _)| before.ends_with([':', '-']))
    else {
        return line.to_owned();
    };
    match values.iter().find(|(place, _)| *place == word) {
        // Always in quotes: 123, null and on are names, too.
        Some((_, value)) => format!("{before} {value:?}{}", &line[said.len()..]),
        None => line.to_owned(),
    }
}

/// Refuses what Kubernetes takes as the name of no namespace.
pub(crate) fn check_namespace(name: &str) -> Result<()> {
    if is_label(name) && name.len() <= MAX_NAMESPACE {
        return Ok(());
    }
    Err(Failure::usage(
        format!("No namespace can be called {}.", shown(name)),
        format!(
            "Use up to {MAX_NAMESPACE} lower-case letters, digits and '-', with a letter or digit at both ends."
        ),
    ))
}

/// Refuses what Kubernetes takes as the name of no such object.
pub(crate) fn check_name(what: &str, name: &str, longest: usize) -> Result<()> {
    if name.split('.').all(is_label) && name.len() <= longest {
        return Ok(());
    }
    Err(Failure::usage(
        format!("{what} can't be called {}.", shown(name)),
        format!(
            "Use up to {longest} lower-case letters, digits, '-' and '.', with a letter or digit at both ends of each part."
        ),
    ))
}

/// Refuses what is no reference of an image. What it refers to is seen when it is pulled.
pub(crate) fn check_image(image: &str) -> Result<()> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._-/:@[]".contains(letter);
    if !image.is_empty() && image.chars().all(is_plain) {
        return Ok(());
    }
    Err(Failure::usage(
        format!("No image can be called {}.", shown(image)),
        "Name it as for docker pull, without blanks or quotes: registry.example.com/team/image:1.2",
    ))
}

/// A DNS label, of whatever length.
fn is_label(text: &str) -> bool {
    let is_inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
    let is_outer = |byte: Option<&u8>| byte.is_some_and(|byte| is_inner(byte) && *byte != b'-');
    let bytes = text.as_bytes();
    bytes.iter().all(is_inner) && is_outer(bytes.first()) && is_outer(bytes.last())
}

fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(MAX_SHOWN).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_filled_in_where_it_is_a_whole_value_and_nowhere_else() {
        let file =
            "# NAME\nname: NAME # NAME\nnames: NAMES\nother: my-NAME\nlist:\n  - NAME\n  # - NAME\nNAME: x\n";
        let filled = "# NAME\nname: \"on\" # NAME\nnames: NAMES\nother: my-NAME\nlist:\n  - \"on\"\n  # - NAME\nNAME: x\n";
        assert_eq!(fill(file, &[("NAME", "on")]), filled);
    }

    #[test]
    fn a_value_that_is_another_place_stays_what_it_is() {
        let filled = fill("a: A\nb: B\n", &[("A", "B"), ("B", "c")]);
        assert_eq!(filled, "a: \"B\"\nb: \"c\"\n");
    }

    #[test]
    fn names_that_kubernetes_refuses_are_refused_with_what_to_use() {
        for name in ["agents", "123", "null", "a-b", &"a".repeat(63)] {
            check_namespace(name).unwrap();
        }
        for name in ["", "Bad NS", "a\nb: c", "-a", "a-", "a.b", "é", &"a".repeat(64)] {
            let said = check_namespace(name).unwrap_err().to_string();
            assert!(said.contains("No namespace can be called") && said.contains("lower-case"), "{said}");
            assert!(!said.contains("a\nb"), "it is shown on one line: {said}");
        }
        check_name("A template", "python.v3", MAX_NAME).unwrap();
        for name in ["", "a..b", "a.-b", "A", &"a".repeat(254)] {
            check_name("A template", name, MAX_NAME).unwrap_err();
        }
    }

    #[test]
    fn an_image_is_one_word_of_plain_letters() {
        for image in ["busybox", "python:3.12-slim", "[::1]:5000/a/b_c@sha256:0f"] {
            check_image(image).unwrap();
        }
        for image in ["", "a b", "x\"\n  y: z", "a\tb", "a'b", "a#b"] {
            let said = check_image(image).unwrap_err().to_string();
            assert!(said.contains("registry.example.com/team/image:1.2"), "{said}");
        }
    }
}
