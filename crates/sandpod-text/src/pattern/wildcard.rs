//! Wildcards of one name: `*`, `?`, `[a-z]`, `[!a-z]`, and `\` before a literal character.
//!
//! Matching works on characters, not bytes. Its time is at most the length of the name times that of the pattern.

/// A pattern for one name.
#[derive(Debug)]
pub(super) struct Wildcard(Vec<Part>);

#[derive(Debug)]
enum Part {
    /// `*`
    AnyNumber,
    One(One),
}

/// Matches one character.
#[derive(Debug)]
enum One {
    Any,
    Exactly(char),
    Class { negated: bool, ranges: Vec<(char, char)> },
}

impl Wildcard {
    /// Parses a pattern, or returns why it is invalid.
    pub(super) fn new(text: &str) -> Result<Self, &'static str> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(character) = rest.chars().next() {
            rest = &rest[character.len_utf8()..];
            parts.push(match character {
                '*' => Part::AnyNumber,
                '?' => Part::One(One::Any),
                '\\' => {
                    let escaped = rest.chars().next().ok_or("no character follows its last '\\'")?;
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

    /// Returns whether a name matches.
    pub(super) fn matches(&self, name: &str) -> bool {
        let (mut at, mut rest) = (0, name.chars());
        // The position after the last `*`, and the text that it has not matched yet.
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

/// Parses the class that begins after a `[`. Returns it and the rest of the text; `None` if the class does not end.
fn class(text: &str) -> Result<Option<(One, &str)>, &'static str> {
    let content = text.strip_prefix(['!', '^']);
    let (negated, content) = (content.is_some(), content.unwrap_or(text));
    // A bracket in the first position is literal.
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
    fn wildcards_match_characters_of_any_length() {
        assert!(matches("?.md", "ä.md") && matches("?", "🦀") && !matches("??", "ä"));
        assert!(matches("[ä-ö]", "é") && !matches("[a-z]", "é") && matches("[!a-z]", "é"));
    }

    #[test]
    fn classes_match_their_characters() {
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
    fn unterminated_class_is_a_literal_bracket() {
        assert!(matches("[a", "[a") && matches("[", "[") && matches("[]", "[]") && matches("[!]*", "[!]x"));
    }

    #[test]
    fn stars_match_the_rest() {
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
    fn invalid_patterns_are_an_error() {
        assert!(Wildcard::new("a\\").is_err() && Wildcard::new("[z-a]").is_err());
        assert!(matches(r"\*\[\\", r"*[\"));
    }
}
