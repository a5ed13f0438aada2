//! `{a,b}` in patterns.

/// Limits of an expansion.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most {
    pub(super) patterns: usize,
    /// Total bytes of these patterns.
    pub(super) bytes: usize,
}

/// The limit that an expansion exceeds.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Exceeds {
    Patterns,
    Bytes,
}

/// Expands the braces of a pattern. Braces without a comma or a partner are literal, as in a shell.
pub(super) fn expand(pattern: &str, most: Most) -> Result<Vec<String>, Exceeds> {
    let mut pending = vec![pattern.to_owned()];
    let mut expanded = Vec::new();
    let mut bytes = pattern.len();
    while let Some(pattern) = pending.pop() {
        let Some(cuts) = outermost_group(&pattern) else {
            expanded.push(pattern);
            continue;
        };
        let alternatives = cuts.len() - 1;
        // Each pending pattern becomes at least one expanded one, so this limits the work in advance.
        if pending.len() + expanded.len() + alternatives > most.patterns {
            return Err(Exceeds::Patterns);
        }
        let (open, close) = (cuts[0], cuts[alternatives]);
        // All alternatives share the text around the group. The group also contains its commas and a brace.
        let around = open + pattern.len() - close - 1;
        bytes = bytes + alternatives * around + (close - open - alternatives) - pattern.len();
        if bytes > most.bytes {
            return Err(Exceeds::Bytes);
        }
        for part in cuts.windows(2) {
            let part = &pattern[part[0] + 1..part[1]];
            pending.push([&pattern[..open], part, &pattern[close + 1..]].concat());
        }
    }
    expanded.sort();
    Ok(expanded)
}

/// Returns the positions of the first group's opening brace, its commas and its closing brace.
fn outermost_group(pattern: &str) -> Option<Vec<usize>> {
    let mut open: Vec<Vec<usize>> = Vec::new();
    let mut first: Option<Vec<usize>> = None;
    let mut escaped = false;
    for (at, byte) in pattern.bytes().enumerate() {
        match byte {
            _ if escaped => {}
            b'{' => open.push(vec![at]),
            b',' => open.last_mut().into_iter().for_each(|group| group.push(at)),
            b'}' => {
                let group = open.pop().filter(|group| group.len() > 1);
                // A group that opened earlier contains or precedes those that closed earlier.
                if let Some(mut group) =
                    group.filter(|group| first.as_ref().is_none_or(|first| group[0] < first[0]))
                {
                    group.push(at);
                    first = Some(group);
                }
            }
            _ => {}
        }
        escaped = byte == b'\\' && !escaped;
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    fn most(patterns: usize) -> Most {
        Most { patterns, bytes: 64 << 20 }
    }

    #[test]
    fn nested_and_adjacent_groups_expand() {
        let cases: [(&str, &[&str]); 8] = [
            ("plain", &["plain"]),
            ("*.{py,rs}", &["*.py", "*.rs"]),
            ("{a,b}{c,d}", &["ac", "ad", "bc", "bd"]),
            ("{a,b{c,d}}x", &["ax", "bcx", "bdx"]),
            ("x{,y}", &["x", "xy"]),
            ("{a}{b{c,d}}", &["{a}{bc}", "{a}{bd}"]),
            ("{{a,b}", &["{a", "{b"]),
            (r"\{a,b}", &[r"\{a,b}"]),
        ];
        for (pattern, expected) in cases {
            assert_eq!(expand(pattern, most(1000)).unwrap(), expected, "{pattern}");
        }
    }

    #[test]
    fn expansion_beyond_the_limit_is_refused_before_it_is_made() {
        let expand = |pattern: &str, patterns| expand(pattern, most(patterns));
        assert_eq!(expand(&"{a,b}".repeat(3), 8).unwrap().len(), 8);
        assert_eq!(expand(&"{a,b}".repeat(3), 7), Err(Exceeds::Patterns));
        assert_eq!(expand(&"{a,b}".repeat(5000), 1000), Err(Exceeds::Patterns));
        assert_eq!(expand(&format!("{{{}}}", ",".repeat(60_000)), 1000), Err(Exceeds::Patterns));
        assert_eq!(expand(&"{".repeat(60_000), 1000).unwrap().len(), 1);
    }

    #[test]
    fn total_bytes_of_all_alternatives_are_limited() {
        let expand = |pattern: &str, bytes| expand(pattern, Most { patterns: 1000, bytes });
        assert_eq!(expand("x{ab,c{d,}}y", 11).unwrap(), ["xaby", "xcdy", "xcy"]);
        assert_eq!(expand("x{ab,c{d,}}y", 10), Err(Exceeds::Bytes));
        let long = format!("{{{}}}{}", ["a"; 1000].join(","), "x".repeat(60_000));
        assert_eq!(expand(&long, 256 << 10), Err(Exceeds::Bytes));
    }
}
