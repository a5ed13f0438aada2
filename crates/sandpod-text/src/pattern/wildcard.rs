//! What one name may look like: `*`, `?`, `[a-z]`, `[!a-z]`, and `\` before what stands for itself.
//!
//! It is about characters, whatever bytes they take, and takes no longer than the name times the pattern.

/// A pattern for one name.
#[derive(Debug)]
pub(super) struct Wildcard(Vec<Part>);

#[derive(Debug)]
enum Part {
    /// `*`
    AnyNumber,
    One(One),
}

/// What one character must be.
#[derive(Debug)]
enum One {
    Any,
    Exactly(char),
    Class { negated: bool, ranges: Vec<(char, char)> },
}

impl Wildcard {
    /// Reads a pattern; if it is none, the error says why.
    pub(super) fn new(text: &str) -> Result<Self, &'static str> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(character) = rest.chars().next() {
            rest = &rest[character.len_utf8()..];
            parts.push(match character {
                '*' => Part::AnyNumber,
                '?' => Part::One(One::Any),
                '\\' => {
                    let escaped = rest.chars().next().ok_or("there is nothing behind its last '\\'")?;
                    rest = &rest[escaped.len_utf8()..];
                    Part::One(One::Exactly(escaped))
                }
                '[' => match class(rest)? {
                    Some((class, behind)) => {
                        rest = behind;
                        Part::One(class)
                    }
                    None => Part::One(One::Exactly('[')),
                },
                literal => Part::One(One::Exactly(literal)),
            });
        }
        Ok(Self(parts))
    }

    /// Whether a name looks so.
    pub(super) fn matches(&self, name: &str) -> bool {
        let (mut at, mut rest) = (0, name.chars());
        // Behind the last `*`, and what it has not taken yet.
        let mut last_star = None;
        loop {
            let mut behind = rest.clone();
            match (self.0.get(at), behind.next()) {
                (Some(Part::AnyNumber), _) => {
                    at += 1;
                    last_star = Some((at, rest.clone()));
                }
                (None, None) => return true,
                (Some(Part::One(one)), Some(character)) if one.is(character) => {
                    at += 1;
                    rest = behind;
                }
                _ => {
                    let Some((after_star, untaken)) = &mut last_star else { return false };
                    if untaken.next().is_none() {
                        return false;
                    }
                    (at, rest) = (*after_star, untaken.clone());
                }
            }
        }
    }
}

impl One {
    fn is(&self, character: char) -> bool {
        match self {
            Self::Any => true,
            Self::Exactly(expected) => character == *expected,
            Self::Class { negated, ranges } => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&character)) != *negated
            }
        }
    }
}

/// The class that begins behind a `[`, and what is behind it; none if it does not end.
fn class(text: &str) -> Result<Option<(One, &str)>, &'static str> {
    let content = text.strip_prefix(['!', '^']);
    let (negated, content) = (content.is_some(), content.unwrap_or(text));
    // A bracket in the first place stands for itself.
    let first = content.chars().next().map_or(0, char::len_utf8);
    let Some(length) = content[first..].find(']') else { return Ok(None) };
    let (inside, behind) = (&content[..first + length], &content[first + length + 1..]);
    let mut ranges = Vec::new();
    let mut characters = inside.chars();
    while let Some(first) = characters.next() {
        let mut ahead = characters.clone();
        let last = match (ahead.next(), ahead.next()) {
            (Some('-'), Some(last)) => {
                characters = ahead;
                last
            }
            _ => first,
        };
        if last < first {
            return Err("a range in it ends before it begins");
        }
        ranges.push((first, last));
    }
    Ok(Some((One::Class { negated, ranges }, behind)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        Wildcard::new(pattern).unwrap().matches(name)
    }

    #[test]
    fn a_character_is_one_whatever_bytes_it_takes() {
        assert!(matches("?.md", "ä.md") && matches("?", "🦀") && !matches("??", "ä"));
        assert!(matches("[ä-ö]", "é") && !matches("[a-z]", "é") && matches("[!a-z]", "é"));
    }

    #[test]
    fn classes_hold_what_stands_in_them() {
        for (pattern, holds, holds_not) in [
            ("[]a]", "]a", "["),
            ("[!]a]", "b[", "]a"),
            ("[a-]", "a-", "b"),
            ("[-a]", "-a", "b"),
            ("[a-c-e]", "abc-e", "d"),
            ("[{]", "{", "\\"),
            (r"[\]", "\\", "a"),
            ("[[]", "[", "]"),
        ] {
            for character in holds.chars() {
                assert!(matches(pattern, &character.to_string()), "{pattern} and {character}");
            }
            for character in holds_not.chars() {
                assert!(!matches(pattern, &character.to_string()), "{pattern} and {character}");
            }
        }
    }

    #[test]
    fn a_class_without_an_end_is_a_bracket() {
        assert!(matches("[a", "[a") && matches("[", "[") && matches("[]", "[]") && matches("[!]*", "[!]x"));
    }

    #[test]
    fn stars_take_what_is_left() {
        assert!(
            matches("*", "")
                && matches("a*b*c", "a1b2b3c")
                && matches("**", "x")
                && matches("*.tar.*", "a.tar.tar.gz")
        );
        assert!(!matches("a*b", "ab1") && !matches("*a", "ba!"));
        assert!(!matches(&("*a".repeat(1000) + "b"), &"a".repeat(255)));
    }

    #[test]
    fn what_can_not_be_read_is_said() {
        assert!(Wildcard::new("a\\").is_err() && Wildcard::new("[z-a]").is_err());
        assert!(matches(r"\*\[\\", r"*[\"));
    }
}
