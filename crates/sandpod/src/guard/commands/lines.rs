//! A parser for shell lines that finds every command: after `;`, `&&` and pipes, in subshells and in substitutions.
//!
//! [`commands`] follows POSIX where the grammar decides which words are commands, and rather reports a command too
//! many. It does not evaluate variables, functions, or programs that run other programs.

/// The maximum depth of nested commands.
const MAX_DEPTH: usize = 24;

/// One command: its words without quotes. Variables are taken as empty.
pub(super) type Words = Vec<String>;

/// The error for a line that is nested too deeply.
#[derive(Debug, PartialEq)]
pub(super) struct TooDeep;

/// Returns all commands of a line, in the order in which they end. The time is linear in the length of the line.
pub(super) fn commands(line: &str) -> Result<Vec<Words>, TooDeep> {
    let mut reader = Reader { bytes: line.as_bytes(), at: 0, ends: Vec::new(), found: Vec::new() };
    while reader.at < reader.bytes.len() {
        reader.list(None)?;
    }
    Ok(reader.found)
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The terminators of the open lists.
    ends: Vec<Option<u8>>,
    found: Vec<Words>,
}

/// The command that a list is reading.
#[derive(Default)]
struct Command {
    words: Words,
    /// Whether the next word is the target of a redirection.
    target: bool,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek();
        self.at += usize::from(byte.is_some());
        byte
    }

    /// Reads commands up to `end`, or to the end of the line.
    fn list(&mut self, end: Option<u8>) -> Result<(), TooDeep> {
        if self.ends.len() == MAX_DEPTH {
            return Err(TooDeep);
        }
        self.ends.push(end);
        let mut command = Command::default();
        while let Some(byte) = self.peek() {
            if Some(byte) == end {
                self.at += 1;
                break;
            }
            match byte {
                b' ' | b'\t' | b'\r' => self.at += 1,
                b'#' => self.comment(),
                b'\n' | b';' | b'&' | b'|' | b')' => {
                    self.at += 1;
                    self.finish(&mut command);
                }
                b'(' => {
                    self.at += 1;
                    self.finish(&mut command);
                    self.list(Some(b')'))?;
                }
                b'<' | b'>' => command.target = self.redirection()?,
                _ => {
                    let word = self.word()?;
                    if !std::mem::take(&mut command.target) {
                        command.words.push(word);
                    }
                }
            }
        }
        self.finish(&mut command);
        self.ends.pop();
        Ok(())
    }

    fn finish(&mut self, command: &mut Command) {
        let words = std::mem::take(command).words;
        if !words.is_empty() {
            self.found.push(words);
        }
    }

    fn comment(&mut self) {
        while self.peek().is_some_and(|byte| byte != b'\n') {
            self.at += 1;
        }
    }

    /// Skips the operator and returns whether a target word follows.
    fn redirection(&mut self) -> Result<bool, TooDeep> {
        let start = self.at;
        while matches!(self.peek(), Some(b'<' | b'>' | b'&' | b'-')) {
            self.at += 1;
        }
        if self.peek() == Some(b'(') {
            self.at += 1;
            self.list(Some(b')'))?;
            return Ok(false);
        }
        // The text of a here-string may be a command line for a shell, so it stays a word.
        Ok(&self.bytes[start..self.at] != b"<<<")
    }

    fn word(&mut self) -> Result<String, TooDeep> {
        let mut word = Vec::new();
        while let Some(byte) = self.peek() {
            let ends_list = self.ends.last() == Some(&Some(byte));
            if ends_list
                || matches!(
                    byte,
                    b' ' | b'\t' | b'\r' | b'\n' | b';' | b'&' | b'|' | b'(' | b')' | b'<' | b'>'
                )
            {
                break;
            }
            self.at += 1;
            match byte {
                b'\\' => word.extend(self.next().filter(|byte| *byte != b'\n')),
                b'\'' => self.single_quoted(&mut word),
                b'"' => self.double_quoted(&mut word)?,
                b'$' => self.expansion(&mut word, true)?,
                b'`' => self.list(Some(b'`'))?,
                _ => word.push(byte),
            }
        }
        Ok(String::from_utf8_lossy(&word).into_owned())
    }

    fn single_quoted(&mut self, word: &mut Vec<u8>) {
        while let Some(byte) = self.next() {
            if byte == b'\'' {
                return;
            }
            word.push(byte);
        }
    }

    fn double_quoted(&mut self, word: &mut Vec<u8>) -> Result<(), TooDeep> {
        while let Some(byte) = self.next() {
            match byte {
                b'"' => return Ok(()),
                b'\\' => match self.next() {
                    None | Some(b'\n') => {}
                    Some(byte @ (b'"' | b'\\' | b'$' | b'`')) => word.push(byte),
                    Some(byte) => word.extend([b'\\', byte]),
                },
                b'$' => self.expansion(word, false)?,
                b'`' => self.list(Some(b'`'))?,
                _ => word.push(byte),
            }
        }
        Ok(())
    }

    /// Reads an expansion after its `$`.
    fn expansion(&mut self, word: &mut Vec<u8>, unquoted: bool) -> Result<(), TooDeep> {
        match self.peek() {
            Some(b'(') => {
                self.at += 1;
                self.list(Some(b')'))?;
            }
            Some(b'{') => {
                self.at += 1;
                self.parameter()?;
            }
            Some(b'\'') if unquoted => {
                self.at += 1;
                self.ansi_quoted(word);
            }
            Some(b'"') if unquoted => {}
            Some(byte) if byte == b'_' || byte.is_ascii_alphanumeric() => {
                while self.peek().is_some_and(|byte| byte == b'_' || byte.is_ascii_alphanumeric()) {
                    self.at += 1;
                }
            }
            Some(b'?' | b'!' | b'$' | b'#' | b'@' | b'*' | b'-') => self.at += 1,
            _ => word.push(b'$'),
        }
        Ok(())
    }

    /// Skips the rest of `${…}` and reads the substitutions in it.
    fn parameter(&mut self) -> Result<(), TooDeep> {
        let mut depth = 1;
        while let Some(byte) = self.next() {
            match byte {
                b'{' => depth += 1,
                b'}' => depth -= 1,
                b'\\' => drop(self.next()),
                b'\'' => self.single_quoted(&mut Vec::new()),
                b'`' => self.list(Some(b'`'))?,
                b'$' if self.peek() == Some(b'(') => {
                    self.at += 1;
                    self.list(Some(b')'))?;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Reads the rest of `$'…'`, including its escapes.
    fn ansi_quoted(&mut self, word: &mut Vec<u8>) {
        while let Some(byte) = self.next() {
            match byte {
                b'\'' => return,
                b'\\' => match self.next() {
                    Some(b'x') => word.extend(self.number(16, 2)),
                    Some(b'u') => self.letter(4, word),
                    Some(b'U') => self.letter(8, word),
                    Some(b'0'..=b'7') => {
                        self.at -= 1;
                        word.extend(self.number(8, 3));
                    }
                    Some(b'n') => word.push(b'\n'),
                    Some(b't') => word.push(b'\t'),
                    Some(byte) => word.push(byte),
                    None => {}
                },
                _ => word.push(byte),
            }
        }
    }

    fn digits(&mut self, radix: u32, most: usize) -> Option<u32> {
        let mut value = None;
        for _ in 0..most {
            let Some(digit) = self.peek().and_then(|byte| char::from(byte).to_digit(radix)) else { break };
            self.at += 1;
            value = Some(value.unwrap_or(0_u32).wrapping_mul(radix).wrapping_add(digit));
        }
        value
    }

    fn number(&mut self, radix: u32, most: usize) -> Option<u8> {
        self.digits(radix, most).and_then(|value| u8::try_from(value & 0xff).ok())
    }

    fn letter(&mut self, most: usize, word: &mut Vec<u8>) {
        if let Some(letter) = self.digits(16, most).and_then(char::from_u32) {
            word.extend(letter.encode_utf8(&mut [0; 4]).bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> Vec<String> {
        commands(line).unwrap().into_iter().map(|words| words.join(" ")).collect()
    }

    #[test]
    fn commands_are_found_at_every_position() {
        assert_eq!(found("a x; b && c || d | e & f\ng"), ["a x", "b", "c", "d", "e", "f", "g"]);
        assert_eq!(found("(a; b) && { c; }"), ["a", "b", "{ c", "}"]);
        assert_eq!(found("a $(b x) `c` \"$(d)\" <(e) ${v:-$(f)}"), ["b x", "c", "d", "e", "f", "a    "]);
        assert_eq!(found("a $(b $(c))"), ["c", "b ", "a "]);
    }

    #[test]
    fn words_are_unquoted_as_in_a_shell() {
        assert_eq!(found(r#"r\m 'a b' "c d"'e'"#), ["rm a b c de"]);
        assert_eq!(found("c${x}ur$y'l'"), ["curl"]);
        assert_eq!(found(r"$'\x63url' $'\143\u0061'"), ["curl ca"]);
        assert_eq!(found("a \\\n b"), ["a  b"]);
        assert_eq!(found(r#"a "\$(b)" '$(c)'"#), ["a $(b) $(c)"]);
    }

    #[test]
    fn redirections_and_comments_are_skipped() {
        assert_eq!(
            found("a > out 2>&1 < in b # c d\ne"),
            ["a b", "e"].map(|line| line.replace("a b", "a 2 b"))
        );
        assert_eq!(found("sh <<< 'x y'"), ["sh x y"]);
        assert_eq!(found("a#b"), ["a#b"]);
    }

    #[test]
    fn endless_nesting_is_an_error() {
        assert_eq!(commands(&"$(".repeat(100_000)), Err(TooDeep));
        assert_eq!(commands(&"(".repeat(100_000)), Err(TooDeep));
    }

    /// Returns up to `count` random letters of `alphabet`, as determined by the seed.
    fn random(seed: u64, alphabet: &str, count: usize) -> String {
        let (mut random, letters) = (fastrand::Rng::with_seed(seed), alphabet.chars().collect::<Vec<_>>());
        (0..random.usize(1..=count)).map(|_| letters[random.usize(..letters.len())]).collect()
    }

    #[test]
    fn every_random_line_is_parsed_to_its_end() {
        for seed in 0..5000 {
            let line = random(seed, "ab =$(){}`'\"\\;|&<>#\n-xé0", 60);
            let _ = commands(&line);
        }
    }

    #[test]
    fn single_quoted_text_is_always_one_word() {
        for seed in 0..1000 {
            let word = random(seed, "ab $`;|&()<>\"\\#\n", 20);
            let commands = commands(&format!("run '{word}'")).unwrap();
            assert_eq!(commands, [["run".to_owned(), word]], "seed {seed}");
        }
    }

    #[test]
    fn command_after_an_operator_is_always_found() {
        for (seed, operator) in
            (0..500).flat_map(|seed| [";", "&&", "||", "|", "&", "\n", "|&"].map(|one| (seed, one)))
        {
            let before = random(seed, "ab x-=/.", 12);
            let found = found(&format!("{before} x {operator} curl y"));
            assert!(found.contains(&"curl y".to_owned()), "seed {seed}: {found:?}");
        }
    }
}
