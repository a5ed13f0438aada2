//! Patterns of paths. One without a slash is of a name, at any depth; one with a slash of a path below the root, where
//! `**` stands for any directories. `*`, `?`, `[a-z]` and `{one,two}` are within one name.

use sandpod_protocol::v1::ErrorCode;
use sandpod_protocol::{Failure, limits};

/// The most that braces may come to.
const MAX_ALTERNATIVES: usize = 256;

/// A pattern.
pub(crate) struct Pattern(Vec<Vec<String>>);

impl Pattern {
    pub(crate) fn new(pattern: &str) -> Result<Self, Failure> {
        if pattern.is_empty() || pattern.len() > limits::MAX_PATTERN_BYTES {
            return Err(invalid("a pattern is empty or too long"));
        }
        let mut alternatives = vec![pattern.to_owned()];
        while let Some((at, (before, choices, after))) =
            alternatives.iter().enumerate().find_map(|(at, one)| Some((at, braces(one)?)))
        {
            let expanded: Vec<_> = choices.iter().map(|choice| format!("{before}{choice}{after}")).collect();
            alternatives.splice(at..=at, expanded);
            if alternatives.len() > MAX_ALTERNATIVES {
                return Err(invalid("a pattern has too many alternatives in braces"));
            }
        }
        let parts = |one: &String| {
            let anchored = one.trim_start_matches('/');
            let mut parts: Vec<_> = anchored.split('/').map(str::to_owned).collect();
            if !one.contains('/') {
                parts.insert(0, "**".to_owned());
            }
            parts
        };
        let all: Vec<Vec<_>> = alternatives.iter().map(parts).collect();
        if all.iter().flatten().any(|part| part == "..") {
            return Err(invalid("a pattern does not lead up: name another root"));
        }
        Ok(Self(all))
    }

    /// Whether a path below the root is meant.
    pub(crate) fn matches(&self, path: &str) -> bool {
        let names: Vec<_> = path.split('/').collect();
        self.0.iter().any(|parts| path_matches(parts, &names))
    }
}

/// The first braces with a comma in them: what is before, the choices, and what is after.
fn braces(pattern: &str) -> Option<(&str, Vec<&str>, &str)> {
    for (open, _) in pattern.match_indices('{') {
        let (mut depth, mut cuts) = (0_usize, vec![open]);
        for (at, character) in pattern[open..].char_indices().map(|(at, one)| (open + at, one)) {
            match character {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => cuts.push(at),
                _ => {}
            }
            if depth == 0 {
                cuts.push(at);
                break;
            }
        }
        if depth == 0 && cuts.len() > 2 {
            let choices = cuts.windows(2).map(|cut| &pattern[cut[0] + 1..cut[1]]).collect();
            return Some((&pattern[..open], choices, &pattern[cuts[cuts.len() - 1] + 1..]));
        }
    }
    None
}

/// By a table, so that no pattern takes more than the product of both lengths.
fn path_matches(parts: &[String], names: &[&str]) -> bool {
    let mut reached = vec![false; names.len() + 1];
    reached[0] = true;
    for part in parts {
        let mut next = vec![false; names.len() + 1];
        for at in 0..=names.len() {
            if part == "**" {
                next[at] = reached[at] || (at > 0 && next[at - 1]);
            } else {
                next[at] = at > 0 && reached[at - 1] && name_matches(part, names[at - 1]);
            }
        }
        reached = next;
    }
    reached[names.len()]
}

fn name_matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let mut reached = vec![false; name.len() + 1];
    reached[0] = true;
    let mut rest = &pattern[..];
    while let [first, after @ ..] = rest {
        let (one, after): (Box<dyn Fn(char) -> bool>, _) = match first {
            '?' => (Box::new(|_| true), after),
            '[' => match class(after) {
                Some((class, after)) => (Box::new(move |one| class_has(class, one)), after),
                None => (Box::new(|one| one == '['), after),
            },
            first => (Box::new(move |one| one == *first), after),
        };
        let mut next = vec![false; name.len() + 1];
        for at in 0..=name.len() {
            next[at] = match first {
                '*' => reached[at] || (at > 0 && next[at - 1]),
                _ => at > 0 && reached[at - 1] && one(name[at - 1]),
            };
        }
        (reached, rest) = (next, after);
    }
    reached[name.len()]
}

/// What is between brackets, and what comes after them.
fn class(after: &[char]) -> Option<(&[char], &[char])> {
    let end = after.iter().skip(1).position(|one| *one == ']')? + 1;
    Some((&after[..end], &after[end + 1..]))
}

fn class_has(class: &[char], one: char) -> bool {
    let (negated, mut class) = match class {
        ['!' | '^', class @ ..] => (true, class),
        class => (false, class),
    };
    let mut has = false;
    while let [first, rest @ ..] = class {
        class = if let ['-', last, after @ ..] = rest {
            has |= (*first..=*last).contains(&one);
            after
        } else {
            has |= *first == one;
            rest
        };
    }
    has != negated
}

fn invalid(why: &str) -> Failure {
    Failure::new(ErrorCode::InvalidArgument, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matching(pattern: &str) -> Vec<&'static str> {
        let paths = ["a.rs", "b.py", "src/a.rs", "src/deep/c.rs", "src/x y.txt", ".hidden"];
        let pattern = Pattern::new(pattern).unwrap();
        paths.into_iter().filter(|path| pattern.matches(path)).collect()
    }

    #[test]
    fn a_pattern_without_a_slash_is_of_a_name_at_any_depth() {
        assert_eq!(matching("*.rs"), ["a.rs", "src/a.rs", "src/deep/c.rs"]);
        assert_eq!(matching("[ab].??"), ["a.rs", "b.py", "src/a.rs"]);
        assert_eq!(matching("[!ab].rs"), ["src/deep/c.rs"]);
    }

    #[test]
    fn a_pattern_with_a_slash_is_of_a_path_below_the_root() {
        assert_eq!(matching("src/*.rs"), ["src/a.rs"]);
        assert_eq!(matching("/*.rs"), ["a.rs"]);
        assert_eq!(matching("**/*.rs"), ["a.rs", "src/a.rs", "src/deep/c.rs"]);
        assert_eq!(matching("src/**"), ["src/a.rs", "src/deep/c.rs", "src/x y.txt"]);
    }

    #[test]
    fn braces_are_alternatives() {
        assert_eq!(matching("*.{py,txt}"), ["b.py", "src/x y.txt"]);
        assert_eq!(matching("{a,{b,c}}.{rs,py}"), ["a.rs", "b.py", "src/a.rs", "src/deep/c.rs"]);
        assert_eq!(matching("{a}.rs"), Vec::<&str>::new());
    }

    #[test]
    fn no_pattern_takes_for_ever() {
        assert!(!Pattern::new(&"*a".repeat(200)).unwrap().matches(&"b".repeat(250)));
        assert!(Pattern::new(&"{a,b}".repeat(20)).is_err());
        assert!(Pattern::new("../x").is_err() && Pattern::new("").is_err());
    }
}
