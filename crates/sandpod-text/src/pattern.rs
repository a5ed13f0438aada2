//! Patterns of paths below a root.
//!
//! A pattern without a slash matches names at any depth. A pattern with a slash matches the path below the root: each of its
//! segments matches one name, and `**` matches any number of names.

mod braces;
mod wildcard;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use sandpod_protocol::v1::ErrorCode;
use sandpod_protocol::{Failure, limits};

use self::braces::{Exceeds, Most};
use self::wildcard::Wildcard;

/// Maximum number of patterns after the expansion of braces.
const MAX_EXPANSIONS: usize = 1000;
/// Maximum bytes of all expanded patterns.
const MAX_EXPANDED_BYTES: usize = 256 << 10;
/// Maximum number of segments of all expanded patterns. Each takes some tens of bytes.
const MAX_SEGMENTS: usize = 32 << 10;

/// A pattern of paths below a root.
///
/// ```
/// use std::path::Path;
/// use sandpod_text::Pattern;
///
/// let sources = Pattern::new("src/**/*.{rs,py}")?;
/// assert!(sources.matches(Path::new("src/deep/main.rs")));
/// // A name that begins with a dot matches only if the pattern has the dot, too.
/// assert!(!sources.matches(Path::new("src/.hidden/main.rs")));
/// // A search need not enter directories outside of src.
/// assert!(!sources.enters(Path::new("target")));
/// # Ok::<(), sandpod_protocol::Failure>(())
/// ```
#[derive(Debug)]
pub struct Pattern {
    /// Matches the last name of a path only.
    by_name: bool,
    alternatives: Vec<Vec<Segment>>,
}

#[derive(Clone, Debug)]
enum Segment {
    /// `**`
    AnyDepth,
    Name(Name),
}

/// Matches one name.
#[derive(Clone, Debug)]
enum Name {
    Exactly(String),
    Like { wildcard: Arc<Wildcard>, dotted: bool },
}

impl Pattern {
    /// Parses a pattern. Rejects a pattern that leaves the root or expands too far.
    pub fn new(pattern: &str) -> Result<Self, Failure> {
        if pattern.is_empty() || pattern.len() > limits::MAX_PATTERN_BYTES {
            return Err(invalid(&format!("it must have 1 to {} bytes", limits::MAX_PATTERN_BYTES)));
        }
        let most = Most { patterns: MAX_EXPANSIONS, bytes: MAX_EXPANDED_BYTES };
        let expanded = braces::expand(pattern, most).map_err(|exceeds| match exceeds {
            Exceeds::Patterns => too_many_names(),
            Exceeds::Bytes => {
                too_broad(&format!("for patterns of more than {MAX_EXPANDED_BYTES} bytes in all"))
            }
        })?;
        let by_name = !pattern.contains('/');
        let mut names = Names::default();
        let mut segments_left = MAX_SEGMENTS;
        let mut alternatives = Vec::new();
        for pattern in expanded {
            if by_name {
                alternatives.push(vec![Segment::Name(names.name(&pattern)?)]);
            } else if let Some(segments) = names.segments(&pattern)? {
                segments_left = segments_left.checked_sub(segments.len()).ok_or_else(|| {
                    too_broad(&format!("for patterns of more than {MAX_SEGMENTS} segments in all"))
                })?;
                alternatives.push(segments);
            }
        }
        Ok(Self { by_name, alternatives })
    }

    /// Returns whether the path below the root matches.
    #[must_use]
    pub fn matches(&self, path: &Path) -> bool {
        let Some(name) = path.file_name().map(OsStr::to_string_lossy) else { return false };
        // The last name decides for nearly all paths, at no cost.
        let mut alike = self.alternatives.iter().filter(|segments| ends_with(segments, &name)).peekable();
        if self.by_name || alike.peek().is_none() {
            return alike.peek().is_some();
        }
        let names: Vec<_> = path.iter().map(OsStr::to_string_lossy).collect();
        alike.any(|segments| reached(segments, &names)[segments.len()])
    }

    /// Returns whether a path below this directory can match.
    #[must_use]
    pub fn enters(&self, directory: &Path) -> bool {
        let names: Vec<_> = directory.iter().map(OsStr::to_string_lossy).collect();
        let open = |segments: &Vec<Segment>| reached(segments, &names)[..segments.len()].contains(&true);
        self.by_name || self.alternatives.iter().any(open)
    }
}

/// Returns whether a path that ends with this name can match: the last segment is never `**`.
fn ends_with(segments: &[Segment], name: &str) -> bool {
    matches!(segments.last(), Some(Segment::Name(last)) if last.is(name))
}

/// Returns after which segments a path can be when it has these names.
fn reached<S: AsRef<str>>(segments: &[Segment], names: &[S]) -> Vec<bool> {
    let mut places = vec![false; segments.len() + 1];
    places[0] = true;
    pass_any_depth(segments, &mut places);
    for name in names {
        let name = name.as_ref();
        let mut next = vec![false; places.len()];
        for (at, segment) in segments.iter().enumerate().filter(|(at, _)| places[*at]) {
            match segment {
                Segment::AnyDepth => next[at] |= !name.starts_with('.'),
                Segment::Name(expected) => next[at + 1] |= expected.is(name),
            }
        }
        pass_any_depth(segments, &mut next);
        places = next;
    }
    places
}

/// `**` also matches no name.
fn pass_any_depth(segments: &[Segment], places: &mut [bool]) {
    for (at, segment) in segments.iter().enumerate() {
        if places[at] && matches!(segment, Segment::AnyDepth) {
            places[at + 1] = true;
        }
    }
}

impl Name {
    fn is(&self, name: &str) -> bool {
        match self {
            Self::Exactly(expected) => name == expected,
            Self::Like { wildcard, dotted } => (*dotted || !name.starts_with('.')) && wildcard.matches(name),
        }
    }
}

/// The names compiled so far, because alternatives share most of them.
#[derive(Default)]
struct Names(HashMap<String, Name>);

impl Names {
    /// Returns the segments of a pattern; `None` if it ends with a slash, because only directories could match.
    fn segments(&mut self, pattern: &str) -> Result<Option<Vec<Segment>>, Failure> {
        if pattern.ends_with('/') {
            return Ok(None);
        }
        let mut segments = Vec::new();
        for text in pattern.split('/').filter(|text| !text.is_empty() && *text != ".") {
            match text {
                ".." => return Err(invalid("it can't have a '..' segment: search in another root")),
                "**" if matches!(segments.last(), Some(Segment::AnyDepth)) => {}
                "**" => segments.push(Segment::AnyDepth),
                text => segments.push(Segment::Name(self.name(text)?)),
            }
        }
        if let Some(Segment::AnyDepth) = segments.last() {
            segments.push(Segment::Name(self.name("*")?));
        }
        Ok(Some(segments))
    }

    fn name(&mut self, text: &str) -> Result<Name, Failure> {
        if text == ".." {
            return Err(invalid("it can't be '..': search in another root"));
        }
        if !text.contains(['*', '?', '[', '\\']) {
            return Ok(Name::Exactly(text.to_owned()));
        }
        if let Some(name) = self.0.get(text) {
            return Ok(name.clone());
        }
        if self.0.len() == MAX_EXPANSIONS {
            return Err(too_many_names());
        }
        let name = compile(text)?;
        self.0.insert(text.to_owned(), name.clone());
        Ok(name)
    }
}

fn compile(text: &str) -> Result<Name, Failure> {
    let wildcard = Wildcard::new(text).map_err(invalid)?.into();
    Ok(Name::Like { wildcard, dotted: text.starts_with('.') || text.starts_with(r"\.") })
}

fn invalid(why: &str) -> Failure {
    Failure::new(ErrorCode::InvalidArgument, format!("invalid_pattern: the pattern is invalid: {why}"))
}

fn too_many_names() -> Failure {
    too_broad(&format!("for more than {MAX_EXPANSIONS} patterns"))
}

fn too_broad(what: &str) -> Failure {
    let message = format!("pattern_too_broad: the pattern's braces stand {what}: search for fewer at once");
    Failure::new(ErrorCode::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        Pattern::new(pattern).unwrap().matches(Path::new(path))
    }

    #[test]
    fn patterns_match_as_documented() {
        let cases = [
            // Without a slash: the name at any depth, also below hidden directories.
            ("*.py", "main.py", true),
            ("*.py", "src/app/main.py", true),
            ("*.yml", ".github/workflows/ci.yml", true),
            ("main.py", "src/main.py", true),
            ("main.py", "main.py/other", false),
            ("**", "a/b", true),
            // With a slash: the path below the root.
            ("src/*.py", "src/main.py", true),
            ("src/*.py", "src/app/main.py", false),
            ("src/*.py", "other/src/main.py", false),
            ("src/**/*.py", "src/main.py", true),
            ("src/**/*.py", "src/a/b/main.py", true),
            ("**/*.py", "main.py", true),
            ("**/test/**/*.py", "a/test/b/c.py", true),
            ("src/**", "src/a/b", true),
            ("src/**", "src", false),
            ("./src//*.py", "src/main.py", true),
            ("src/", "src", false),
            // A leading slash is the root.
            ("/*.py", "main.py", true),
            ("/*.py", "src/main.py", false),
            // Names that begin with a dot need one in the pattern.
            ("*", ".env", false),
            (".*", ".env", true),
            (".env", "a/.env", true),
            ("?env", ".env", false),
            ("[.]env", ".env", false),
            ("**/*.yml", ".github/ci.yml", false),
            (".github/**/*.yml", ".github/a/ci.yml", true),
            ("**/.github/*.yml", "a/.github/ci.yml", true),
            ("src/**", "src/.hidden", false),
            // Classes and single characters.
            ("[ab].txt", "a.txt", true),
            ("[!ab].txt", "a.txt", false),
            ("[!ab].txt", "c.txt", true),
            ("[^ab].txt", "a.txt", false),
            ("[^ab].txt", "c.txt", true),
            ("[a-c]?.txt", "b1.txt", true),
            // Braces.
            ("*.{py,rs}", "a/main.rs", true),
            ("*.{py,rs}", "main.go", false),
            ("{src,tests/{unit,e2e}}/*.py", "tests/e2e/a.py", true),
            ("{src,tests/{unit,e2e}}/*.py", "tests/other/a.py", false),
            ("*.{py", "a.{py", true),
            ("*{a}", "x{a}", true),
            // Matching is case-sensitive, and an escaped star is a star.
            ("?.md", "ä.md", true),
            ("*.PY", "main.py", false),
            (r"\*.py", "*.py", true),
            (r"\*.py", "a.py", false),
        ];
        for (pattern, path, expected) in cases {
            assert_eq!(matches(pattern, path), expected, "{pattern} and {path}");
        }
    }

    #[test]
    fn only_directories_that_can_hold_a_match_are_entered() {
        let enters = |pattern, directory| Pattern::new(pattern).unwrap().enters(Path::new(directory));
        assert!(enters("src/*/x.py", "src") && enters("src/*/x.py", "src/a"));
        assert!(!enters("src/*/x.py", "other") && !enters("src/*/x.py", "src/a/b"));
        assert!(enters("**/x.py", "a/b") && !enters("**/x.py", ".git"));
        assert!(enters("x.py", ".git/a"));
        assert!(!enters("/x.py", "a"));
    }

    #[test]
    fn pattern_that_leaves_its_root_is_refused() {
        for pattern in ["../*.py", "a/../b", "..", "{..,a}/x", "/.."] {
            let failure = Pattern::new(pattern).err().unwrap();
            assert_eq!(failure.code(), ErrorCode::InvalidArgument);
            assert!(failure.message().starts_with("invalid_pattern"), "{failure}");
        }
        assert!(matches("..a", "..a"));
    }

    #[test]
    fn patterns_that_expand_too_far_or_are_invalid_are_refused() {
        let failure = Pattern::new(&"{a,b}".repeat(11)).err().unwrap();
        assert!(failure.message().starts_with("pattern_too_broad"), "{failure}");
        let many = (0..2000).map(|number| format!("*{number}")).collect::<Vec<_>>().join("/");
        assert!(Pattern::new(&many).err().unwrap().message().starts_with("pattern_too_broad"));
        for pattern in ["", "[z-a]", "a\\", &"x".repeat(limits::MAX_PATTERN_BYTES + 1)] {
            assert!(Pattern::new(pattern).err().unwrap().message().starts_with("invalid_pattern"));
        }
    }

    #[test]
    fn pattern_that_expands_too_far_gets_an_error_with_the_limit() {
        let numbers =
            |count: usize| (0..count).map(|number| number.to_string()).collect::<Vec<_>>().join(",");
        let refusal = |pattern: &str| {
            let failure = Pattern::new(pattern).err().unwrap();
            assert_eq!(failure.code(), ErrorCode::InvalidArgument);
            assert!(failure.message().starts_with("pattern_too_broad"), "{failure}");
            failure.message().to_owned()
        };
        let many_segments = format!("{{{}}}{}", numbers(1000), "/a".repeat(100));
        assert!(refusal(&many_segments).contains("more than 32768 segments in all"));
        let many_bytes = format!("{{{}}}/{}", numbers(1000), "x".repeat(1000));
        assert!(refusal(&many_bytes).contains("more than 262144 bytes in all"));
        // At the limits of number and length.
        assert!(matches(
            &format!("{{{}}}{}", numbers(1000), "/a".repeat(31)),
            &format!("999{}", "/a".repeat(31))
        ));
        assert!(Pattern::new(&"/a".repeat(limits::MAX_PATTERN_BYTES / 2)).is_ok());
    }

    #[test]
    fn many_stars_take_no_longer_than_few() {
        let pattern = "**/a/".repeat(40) + "b";
        assert!(!matches(&pattern, &"a/".repeat(60)));
    }

    /// Returns the text of a random pattern, and the patterns without braces that it expands to.
    fn random_pattern(random: &mut fastrand::Rng) -> (String, Vec<String>) {
        let (mut text, mut plain) = (String::new(), vec![String::new()]);
        let mut add = |pieces: &[String]| {
            match pieces {
                [one] => text.push_str(one),
                many => text += &["{", &many.join(","), "}"].concat(),
            }
            plain = plain
                .iter()
                .flat_map(|plain| pieces.iter().map(move |piece| format!("{plain}{piece}")))
                .collect();
        };
        let segments = random.usize(1..4);
        for segment in 0..segments {
            if segment > 0 {
                add(&["/".to_owned()]);
            }
            if segments > 1 && random.u8(0..4) == 0 {
                add(&["**".to_owned()]);
                continue;
            }
            for _ in 0..random.usize(1..4) {
                let mut atom =
                    || (*random.choice(&["a", "b", "a.", "?", "*b", "[ab]", "[!a]"]).unwrap()).to_owned();
                let alternatives = if atom() == "a" { vec![atom(), atom()] } else { vec![atom()] };
                add(&alternatives);
            }
            if random.u8(0..5) == 0 {
                add(&["*".to_owned()]);
            }
        }
        (text, plain)
    }

    /// Matches a name against a pattern without braces and slashes, character by character.
    fn name_is_like(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => (0..=name.len()).any(|skipped| name_is_like(rest, &name[skipped..])),
            ([b'?', rest @ ..], [_, name @ ..])
            | ([b'[', b'a', b'b', b']', rest @ ..], [b'a' | b'b', name @ ..]) => name_is_like(rest, name),
            ([b'[', b'!', b'a', b']', rest @ ..], [other, name @ ..]) => {
                *other != b'a' && name_is_like(rest, name)
            }
            ([b'[', ..], _) => false,
            ([one, rest @ ..], [other, name @ ..]) => one == other && name_is_like(rest, name),
            _ => false,
        }
    }

    /// A reference implementation of matching.
    fn is_like(pattern: &[&str], names: &[&str]) -> bool {
        let one = |pattern: &str, name: &str| {
            (!name.starts_with('.') || pattern.starts_with('.'))
                && name_is_like(pattern.as_bytes(), name.as_bytes())
        };
        match (pattern, names) {
            ([], []) => true,
            (["**"], _) => !names.is_empty() && names.iter().all(|name| !name.starts_with('.')),
            (["**", rest @ ..], _) => {
                is_like(rest, names)
                    || matches!(names, [first, names @ ..] if !first.starts_with('.') && is_like(pattern, names))
            }
            ([first, rest @ ..], [name, names @ ..]) => one(first, name) && is_like(rest, names),
            _ => false,
        }
    }

    #[test]
    fn random_patterns_match_like_a_reference_implementation() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut matched = 0;
        for _ in 0..1000 {
            let (text, plain) = random_pattern(&mut random);
            let pattern = Pattern::new(&text).unwrap();
            for _ in 0..10 {
                let names = ["a", "b", "ab", "a.b", ".a", "ba", "..b"];
                let names: Vec<&str> =
                    (0..random.usize(1..4)).map(|_| *random.choice(&names).unwrap()).collect();
                let path = names.join("/");
                let expected = plain.iter().any(|plain| {
                    let segments: Vec<&str> = plain.split('/').collect();
                    let names = if text.contains('/') { &names[..] } else { &names[names.len() - 1..] };
                    is_like(&segments, names)
                });
                assert_eq!(pattern.matches(Path::new(&path)), expected, "{text} and {path}");
                // All directories above a match are entered.
                let mut above = Path::new(&path).ancestors().skip(1).filter(|above| *above != Path::new(""));
                assert!(!expected || above.all(|above| pattern.enters(above)), "{text} and {path}");
                matched += usize::from(expected);
            }
        }
        assert!(matched > 300, "{matched}");
    }
}
