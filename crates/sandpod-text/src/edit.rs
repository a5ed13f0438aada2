//! Replacements in a text.

use sandpod_protocol::Failure;
use sandpod_protocol::v1::{EditRequest, ErrorCode, Replacement};

/// Maximum size of a file to edit, whose text is in memory before and after the edit.
pub const MAX_BYTES: u64 = 32 << 20;

/// Returns the replacement of an edit request.
#[must_use]
pub fn replacement(request: &EditRequest) -> Replacement {
    Replacement {
        old_text: request.old_text.clone(),
        new_text: request.new_text.clone(),
        replace_all: request.replace_all,
    }
}

/// Rejects a replacement of an empty text.
///
/// ```
/// use sandpod_protocol::v1::Replacement;
///
/// assert!(sandpod_text::edit::check(&Replacement::default()).is_err());
/// ```
pub fn check(replacement: &Replacement) -> Result<(), Failure> {
    if replacement.old_text.is_empty() {
        let message = "old_string cannot be empty. Provide the exact text to replace.";
        return Err(Failure::new(ErrorCode::InvalidArgument, message));
    }
    Ok(())
}

/// Converts the content of the file at `path` to text.
pub fn text_of(content: Vec<u8>, path: &str) -> Result<String, Failure> {
    String::from_utf8(content).map_err(|_| {
        let message = format!("'{path}' is not UTF-8 text: upload a new version instead");
        Failure::new(ErrorCode::NotText, message).at(path)
    })
}

/// Rejects a text that is too large to edit.
pub fn check_size(bytes: u64) -> Result<(), Failure> {
    if bytes <= MAX_BYTES {
        return Ok(());
    }
    let message =
        format!("a file of {bytes} bytes is too large to edit (at most {MAX_BYTES}): use a command");
    Err(Failure::new(ErrorCode::TooLarge, message))
}

/// Returns the text after the replacements, and their number. Line endings of the request may differ from those of the file,
/// because models do not see them.
///
/// ```
/// use sandpod_protocol::v1::Replacement;
///
/// let (old_text, new_text) = ("one\ntwo".to_owned(), "1\n2".to_owned());
/// let replacement = Replacement { old_text, new_text, replace_all: false };
/// let (text, count) = sandpod_text::edit::replace("one\r\ntwo\r\n", &replacement)?;
/// assert_eq!((text.as_str(), count), ("1\r\n2\r\n", 1));
/// # Ok::<(), sandpod_protocol::Failure>(())
/// ```
pub fn replace(text: &str, request: &Replacement) -> Result<(String, u64), Failure> {
    let as_sent = |part: &str| part.to_owned();
    let with_crlf = |part: &str| part.replace('\n', "\r\n");
    let with_lf = |part: &str| part.replace("\r\n", "\n");
    let variants: [&dyn Fn(&str) -> String; 3] = [&as_sent, &with_crlf, &with_lf];
    for variant in variants {
        let (old, new) = (variant(&request.old_text), variant(&request.new_text));
        match text.matches(&old).count() {
            0 => {}
            2.. if !request.replace_all => {
                let message = "the text appears multiple times: add lines around it, or replace all";
                return Err(Failure::new(ErrorCode::ManyMatches, message));
            }
            count => {
                check_size((text.len() - count * old.len()) as u64 + count as u64 * new.len() as u64)?;
                return Ok((text.replace(&old, &new), count as u64));
            }
        }
    }
    Err(Failure::new(ErrorCode::NoMatch, "the text is not in the file: read the file and copy it exactly"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(text: &str, old: &str, new: &str, replace_all: bool) -> Result<(String, u64), ErrorCode> {
        let replacement = Replacement { old_text: old.to_owned(), new_text: new.to_owned(), replace_all };
        replace(text, &replacement).map_err(|failure| failure.code())
    }

    #[test]
    fn a_replacement_is_the_only_one_or_all() {
        assert_eq!(replaced("a b a", "b", "c", false), Ok(("a c a".to_owned(), 1)));
        assert_eq!(replaced("a b a", "a", "c", true), Ok(("c b c".to_owned(), 2)));
        assert_eq!(replaced("a b a", "a", "c", false), Err(ErrorCode::ManyMatches));
        assert_eq!(replaced("a", "x", "c", false), Err(ErrorCode::NoMatch));
    }

    #[test]
    fn text_that_would_be_too_large_is_an_error() {
        let text = "a".repeat(1 << 17);
        assert_eq!(replaced(&text, "a", &"b".repeat(1 << 10), true), Err(ErrorCode::TooLarge));
    }

    /// A reference implementation.
    fn naive(text: &str, old: &str, new: &str, replace_all: bool) -> Option<String> {
        let crlf = |part: &str| part.replace('\n', "\r\n");
        let lf = |part: &str| part.replace("\r\n", "\n");
        let variants = [(old.to_owned(), new.to_owned()), (crlf(old), crlf(new)), (lf(old), lf(new))];
        for (old, new) in variants {
            let (mut result, mut count, mut rest) = (String::new(), 0, text);
            while let Some(character) = rest.chars().next() {
                if let Some(behind) = rest.strip_prefix(old.as_str()) {
                    result.push_str(&new);
                    rest = behind;
                    count += 1;
                } else {
                    result.push(character);
                    rest = &rest[character.len_utf8()..];
                }
            }
            match count {
                0 => {}
                2.. if !replace_all => return None,
                _ => return Some(result),
            }
        }
        None
    }

    #[test]
    fn random_edits_equal_those_of_a_reference_implementation() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut done = 0;
        let words = |random: &mut fastrand::Rng, most: usize| {
            let word =
                |random: &mut fastrand::Rng| *random.choice(&["a", "aa", "ä", "\n", "\r\n", "\r"]).unwrap();
            (0..random.usize(1..most)).map(|_| word(random)).collect::<String>()
        };
        for _ in 0..5000 {
            let (text, old, new) = (words(&mut random, 20), words(&mut random, 4), words(&mut random, 4));
            let replace_all = random.bool();
            let replacement = Replacement { old_text: old.clone(), new_text: new.clone(), replace_all };
            let edited = replace(&text, &replacement).ok().map(|(edited, _)| edited);
            assert_eq!(edited, naive(&text, &old, &new, replace_all), "{text:?} {old:?} {new:?}");
            done += usize::from(edited.is_some());
        }
        assert!(done > 1000, "{done}");
    }
}
