//! The state that a shell reports when a line of a session has ended.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::slice::Iter;

/// Options of `set -o` that are kept; others concern interactive use or the shell itself.
const OPTIONS: [&str; 8] =
    ["allexport", "errexit", "noclobber", "noglob", "nounset", "pipefail", "verbose", "xtrace"];
/// Variables that each shell sets itself.
const SET_BY_SHELL: [&str; 3] = ["_", "SHLVL", "PWD"];

/// Returns whether each shell sets this variable itself.
pub(super) fn is_set_by_shell(name: &str) -> bool {
    SET_BY_SHELL.contains(&name)
}

/// State of a shell at its end.
#[derive(Debug, Default, PartialEq)]
pub(super) struct FinalState {
    pub(super) dir: String,
    pub(super) umask: u32,
    pub(super) options: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) functions: Vec<u8>,
}

impl FinalState {
    /// Parses the output of the driver script. Returns `None` if it is incomplete.
    pub(super) fn parse(report: &[u8]) -> Option<Self> {
        let parts: Vec<_> = report.split(|byte| *byte == 0).collect();
        let [dir, umask, options, exported, functions, b"end", b""] = parts[..] else { return None };
        let dir = std::str::from_utf8(dir).ok()?.strip_suffix('\n')?.to_owned();
        let umask = u32::from_str_radix(std::str::from_utf8(umask).ok()?.trim(), 8).ok()?;
        if !dir.starts_with('/') || umask > 0o777 {
            return None;
        }
        let options = String::from_utf8_lossy(options);
        let options = options.lines().filter_map(|line| line.strip_prefix("set -o "));
        let options = options.filter(|name| OPTIONS.contains(name)).map(str::to_owned).collect();
        Some(Self { dir, umask, options, env: variables(exported), functions: functions.to_vec() })
    }
}

/// Parses the output of `export -p`. Variables that are not UTF-8 are skipped.
fn variables(exported: &[u8]) -> BTreeMap<String, String> {
    let mut rest = exported.iter().peekable();
    let mut variables = BTreeMap::new();
    while rest.peek().is_some() {
        let declaration = words(&mut rest);
        let Some(assignment) = declaration.last().and_then(|word| std::str::from_utf8(word).ok()) else {
            continue;
        };
        if let Some((name, value)) = assignment.split_once('=')
            && is_name(name)
            && !is_set_by_shell(name)
            && !name.starts_with("__sandpod_")
        {
            variables.insert(name.to_owned(), value.to_owned());
        }
    }
    variables
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Splits one command into words and removes the quotes.
fn words(text: &mut Peekable<Iter<'_, u8>>) -> Vec<Vec<u8>> {
    let mut words = vec![Vec::new()];
    while let Some(byte) = text.next() {
        let mut add = |byte| words.last_mut().into_iter().for_each(|word: &mut Vec<u8>| word.push(byte));
        match byte {
            b'\n' => break,
            b'\'' => text.by_ref().take_while(|byte| **byte != b'\'').for_each(|byte| add(*byte)),
            b'"' => double_quoted(text).into_iter().for_each(add),
            b'$' if text.peek() == Some(&&b'\'') => {
                text.next();
                escaped(text).into_iter().for_each(add);
            }
            b'\\' => text.next().into_iter().for_each(|byte| add(*byte)),
            b' ' => words.push(Vec::new()),
            _ => add(*byte),
        }
    }
    words
}

/// Reads up to the closing `"`. A `\` quotes only characters that would be special.
fn double_quoted(text: &mut Peekable<Iter<'_, u8>>) -> Vec<u8> {
    let mut inside = Vec::new();
    while let Some(byte) = text.next().filter(|byte| **byte != b'"') {
        match (byte, text.peek()) {
            (b'\\', Some(b'"' | b'\\' | b'$' | b'`')) => inside.extend(text.next()),
            (b'\\', Some(b'\n')) => drop(text.next()),
            _ => inside.push(*byte),
        }
    }
    inside
}

/// Reads up to the closing `'` of `$'…'`, in which bash prints values with control characters.
fn escaped(text: &mut Peekable<Iter<'_, u8>>) -> Vec<u8> {
    let mut inside = Vec::new();
    while let Some(byte) = text.next().filter(|byte| **byte != b'\'') {
        if *byte != b'\\' {
            inside.push(*byte);
            continue;
        }
        match text.next() {
            Some(b'a') => inside.push(7),
            Some(b'b') => inside.push(8),
            Some(b't') => inside.push(b'\t'),
            Some(b'n') => inside.push(b'\n'),
            Some(b'v') => inside.push(11),
            Some(b'f') => inside.push(12),
            Some(b'r') => inside.push(b'\r'),
            Some(b'E' | b'e') => inside.push(27),
            Some(first @ b'0'..=b'7') => inside.push(octal(*first, text)),
            Some(other) => inside.push(*other),
            None => {}
        }
    }
    inside
}

/// Reads a byte of at most three octal digits.
fn octal(first: u8, text: &mut Peekable<Iter<'_, u8>>) -> u8 {
    let mut value = first - b'0';
    for _ in 0..2 {
        if let Some(digit) = text.next_if(|byte| (b'0'..=b'7').contains(byte)) {
            value = value.wrapping_mul(8).wrapping_add(digit - b'0');
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn an_incomplete_report_is_rejected() {
        let whole = b"/tmp\n\x000022\n\0set -o errexit\n\0export A='b'\n\0\0end\0";
        let left = FinalState::parse(whole).unwrap();
        assert_eq!((left.dir.as_str(), left.umask, left.env["A"].as_str()), ("/tmp", 0o022, "b"));
        assert_eq!(left.options, ["errexit"]);
        for end in 0..whole.len() {
            assert_eq!(FinalState::parse(&whole[..end]), None);
        }
        let nonsense: [&[u8]; 3] =
            [b"", b"relative\n\x000022\n\0\0\0\0end\0", b"/tmp\n\09999\n\0\0\0\0end\0"];
        for report in nonsense {
            assert_eq!(FinalState::parse(report), None);
        }
    }

    /// Shells differ in the output of `export -p`. Those that are not installed are skipped.
    #[test]
    fn exported_variables_of_any_content_are_parsed() {
        let mut random = fastrand::Rng::with_seed(5);
        let pieces = [
            "'",
            "\"",
            "\\",
            "$",
            "`",
            "\n",
            " ",
            "=",
            "é",
            "\t",
            "\u{1b}",
            "\u{7f}",
            "a",
            "1",
            "$'",
            "export X='1'\n",
            "\r",
            "!",
        ];
        for _ in 0..20 {
            let value: String =
                (0..random.usize(0..30)).map(|_| pieces[random.usize(..pieces.len())]).collect();
            for shell in
                [&["dash", "-c"][..], &["bash", "--posix", "-c"], &["bash", "-c"], &["busybox", "sh", "-c"]]
            {
                let output = Command::new(shell[0])
                    .args(&shell[1..])
                    .arg("export -p")
                    .env_clear()
                    .env("A", &value)
                    .output();
                let Ok(output) = output else { continue };
                let variables = variables(&output.stdout);
                assert_eq!(
                    variables.get("A"),
                    Some(&value),
                    "{shell:?}: {:?}",
                    String::from_utf8_lossy(&output.stdout)
                );
            }
        }
    }
}
