//! The meaning of a pattern by definition: every alternative, and every possible match.

/// The longest pattern and path for which the reference is fast enough.
const MOST_CHARACTERS: usize = 40;
/// The most stars: the possible matches grow exponentially with them.
const MOST_STARS: usize = 6;
/// The most alternatives of braces; the guest refuses more, too.
const MOST_ALTERNATIVES: usize = 256;

/// Reports whether a pattern that the guest accepts matches a path of these names; none if that takes too long.
pub(super) fn means(pattern: &str, names: &[&str]) -> Option<bool> {
    let length = names.iter().map(|name| name.chars().count() + 1).sum::<usize>();
    let stars = pattern.matches('*').count();
    if pattern.chars().count() > MOST_CHARACTERS || length > MOST_CHARACTERS || stars > MOST_STARS {
        return None;
    }
    let by_name = !pattern.contains('/');
    let names = if by_name { &names[names.len() - 1..] } else { names };
    let pattern: Vec<char> = pattern.chars().collect();
    let alternatives = alternatives(&pattern)?;
    Some(alternatives.iter().any(|pattern| {
        let segments: Vec<&[char]> =
            if by_name { vec![pattern] } else { pattern.split(|c| *c == '/').collect() };
        // A trailing slash means a directory, and only files match.
        let is_file = by_name || segments.last().is_none_or(|last| !last.is_empty());
        let segments: Vec<_> =
            segments.into_iter().filter(|text| !matches!(text, [] | ['.']) || by_name).collect();
        is_file && path_is(&segments, names, by_name)
    }))
}

fn path_is(segments: &[&[char]], names: &[&str], by_name: bool) -> bool {
    match (segments, names) {
        ([['*', '*']], names) if !by_name => {
            !names.is_empty() && names.iter().all(|name| !name.starts_with('.'))
        }
        ([['*', '*'], rest @ ..], names) if !by_name => {
            path_is(rest, names, by_name)
                || names
                    .split_first()
                    .is_some_and(|(name, below)| !name.starts_with('.') && path_is(segments, below, by_name))
        }
        ([segment, rest @ ..], [name, below @ ..]) => {
            let is_dotted = matches!(segment, ['.', ..] | ['\\', '.', ..]);
            let characters: Vec<char> = name.chars().collect();
            let hidden = name.starts_with('.') && !is_dotted && is_wild(segment);
            !hidden && name_is(segment, &characters) && path_is(rest, below, by_name)
        }
        (segments, names) => segments.is_empty() && names.is_empty(),
    }
}

fn is_wild(segment: &[char]) -> bool {
    segment.iter().any(|c| matches!(c, '*' | '?' | '[' | '\\'))
}

fn name_is(pattern: &[char], name: &[char]) -> bool {
    match pattern {
        [] => name.is_empty(),
        ['*', rest @ ..] => (0..=name.len()).any(|taken| name_is(rest, &name[taken..])),
        ['?', rest @ ..] => !name.is_empty() && name_is(rest, &name[1..]),
        ['\\', literal, rest @ ..] => name.first() == Some(literal) && name_is(rest, &name[1..]),
        [literal, rest @ ..] => match class(pattern) {
            Some((class, rest)) => name.first().is_some_and(|c| class.holds(*c)) && name_is(rest, &name[1..]),
            None => name.first() == Some(literal) && name_is(rest, &name[1..]),
        },
    }
}

struct Class {
    negated: bool,
    ranges: Vec<(char, char)>,
}

impl Class {
    fn holds(&self, c: char) -> bool {
        self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&c)) != self.negated
    }
}

/// Splits off the class at the start of a pattern; none if there is no class or it has no end.
fn class(pattern: &[char]) -> Option<(Class, &[char])> {
    let ['[', inside @ ..] = pattern else { return None };
    let negated = matches!(inside, ['!' | '^', ..]);
    let content = if negated { &inside[1..] } else { inside };
    // A bracket in the first position is literal.
    let end = 1 + content.iter().skip(1).position(|c| *c == ']')?;
    let (mut content, rest) = (&content[..end], &content[end + 1..]);
    let mut ranges = Vec::new();
    loop {
        content = match content {
            [] => return Some((Class { negated, ranges }, rest)),
            [first, '-', last, next @ ..] => {
                ranges.push((*first, *last));
                next
            }
            [one, next @ ..] => {
                ranges.push((*one, *one));
                next
            }
        };
    }
}

/// Returns all alternatives of a pattern's braces.
fn alternatives(pattern: &[char]) -> Option<Vec<Vec<char>>> {
    let Some((before, parts, after)) = first_group(pattern) else {
        return Some(vec![pattern.to_owned()]);
    };
    let mut all = Vec::new();
    for part in parts {
        all.extend(alternatives(&[before, part, after].concat())?);
        if all.len() > MOST_ALTERNATIVES {
            return None;
        }
    }
    Some(all)
}

/// The text before a group of braces, its parts, and the text after it.
type Group<'a> = (&'a [char], Vec<&'a [char]>, &'a [char]);

/// Finds the first braces that contain a comma.
fn first_group(pattern: &[char]) -> Option<Group<'_>> {
    (0..pattern.len()).filter(|at| pattern[*at] == '{' && !is_escaped(pattern, *at)).find_map(|open| {
        let (parts, close) = parts(pattern, open)?;
        (parts.len() > 1).then(|| (&pattern[..open], parts, &pattern[close + 1..]))
    })
}

/// Returns the parts of the braces that open here, and the position of their end; none if they do not close.
fn parts(pattern: &[char], open: usize) -> Option<(Vec<&[char]>, usize)> {
    let (mut parts, mut begin, mut at) = (Vec::new(), open + 1, open + 1);
    while at < pattern.len() {
        match pattern[at] {
            '\\' => at += 1,
            '{' => at = self::parts(pattern, at)?.1,
            ',' => {
                parts.push(&pattern[begin..at]);
                begin = at + 1;
            }
            '}' => {
                parts.push(&pattern[begin..at]);
                return Some((parts, at));
            }
            _ => {}
        }
        at += 1;
    }
    None
}

fn is_escaped(pattern: &[char], at: usize) -> bool {
    pattern[..at].iter().rev().take_while(|c| **c == '\\').count() % 2 == 1
}
