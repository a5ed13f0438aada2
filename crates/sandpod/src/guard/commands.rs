//! Which commands are refused before they are sent.
//!
//! A guard rail, not a jail: it keeps an agent from what it was asked not to do, and tells it so. It can't keep code from
//! anything: a variable, a script or another language gets around every rule on words. What must hold is held by the
//! sandbox: its roots, its network, the Pod.

mod lines;

use std::borrow::Cow;

use sandpod_client::Command;

use self::lines::{TooDeep, Words, commands};
use crate::{Error, Result};

/// How deep lines may be in lines (`sh -c "sh -c …"`).
const MAX_LINES: usize = 8;
/// How many words of what a program runs are looked at.
const RUN_WORDS: usize = 64;
/// Programs that run what their arguments name, by rules of their own.
const RUNNERS: [&str; 23] = [
    "builtin", "busybox", "chroot", "command", "doas", "env", "exec", "find", "flock", "ionice", "nice",
    "nohup", "nsenter", "parallel", "setsid", "stdbuf", "strace", "sudo", "time", "timeout", "unshare",
    "watch", "xargs",
];
/// Programs that take a line as an argument.
const SHELLS: [&str; 9] = ["ash", "bash", "busybox", "dash", "ksh", "mksh", "sh", "su", "zsh"];
/// Words of the shell's own before a command.
const KEYWORDS: [&str; 12] =
    ["!", "{", "}", "do", "elif", "else", "if", "then", "time", "until", "while", "coproc"];

/// The rules on commands.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CommandRules {
    rules: Vec<Rule>,
    texts: Vec<String>,
}

/// A program with words that it must have to be refused.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Rule {
    text: String,
    words: Words,
}

impl CommandRules {
    /// Rules such as `curl`, `rm -rf` and `git push`, and texts that a line must not hold.
    ///
    /// ```
    /// use sandpod::CommandRules;
    ///
    /// let rules = CommandRules::new(&["rm -rf", "curl"], &["/etc/shadow"])?;
    /// assert_eq!(rules.denies(&"cd /tmp && /bin/rm -r -f x".into()), Some("rm -rf"));
    /// assert_eq!(rules.denies(&"echo $(cu\\rl example.com)".into()), Some("curl"));
    /// assert_eq!(rules.denies(&"cat /etc/shadow".into()), Some("/etc/shadow"));
    /// assert_eq!(rules.denies(&"rm x".into()), None);
    /// # Ok::<(), sandpod::Error>(())
    /// ```
    pub fn new(rules: &[impl AsRef<str>], texts: &[impl AsRef<str>]) -> Result<Self> {
        let rules = rules.iter().map(|rule| Rule::new(rule.as_ref())).collect::<Result<_>>()?;
        let texts: Vec<_> = texts.iter().map(|text| text.as_ref().to_owned()).collect();
        if texts.iter().any(String::is_empty) {
            return Err(unusable("an empty text is in every command"));
        }
        Ok(Self { rules, texts })
    }

    /// The rule that refuses a command, if one does.
    #[must_use]
    pub fn denies(&self, command: &Command) -> Option<&str> {
        let text = match command {
            Command::Line(line) => Cow::Borrowed(line.as_str()),
            Command::Argv(words) => Cow::Owned(words.join(" ")),
        };
        if let Some(found) = self.texts.iter().find(|denied| text.contains(denied.as_str())) {
            return Some(found);
        }
        if self.rules.is_empty() {
            return None;
        }
        match command {
            Command::Line(line) => self.line(line, 0),
            Command::Argv(words) => self.words(words, 0),
        }
    }

    fn line(&self, line: &str, depth: usize) -> Option<&str> {
        let found = if depth < MAX_LINES { commands(line) } else { Err(TooDeep) };
        match found {
            Ok(commands) => commands.iter().find_map(|words| self.words(words, depth)),
            // Nobody can say what it runs.
            Err(TooDeep) => Some("too deeply nested"),
        }
    }

    fn words(&self, words: &[String], depth: usize) -> Option<&str> {
        let words = without_prefixes(words);
        let program = name_of(words.first()?);
        if let Some(rule) = self.rule(words) {
            return Some(rule);
        }
        if program == "eval" {
            return self.line(&words[1..].join(" "), depth + 1);
        }
        let is_runner = RUNNERS.contains(&program);
        if let Some(rule) = self.run(&words[1..]).filter(|_| is_runner) {
            return Some(rule);
        }
        // Any argument of a shell may be a line.
        let is_shell = |word: &String| SHELLS.contains(&name_of(word));
        let shell = words.iter().position(is_shell).filter(|at| *at == 0 || is_runner)?;
        let arguments = words[shell + 1..].iter().filter(|word| !word.starts_with('-'));
        arguments.into_iter().find_map(|word| self.line(word, depth + 1))
    }

    fn rule(&self, words: &[String]) -> Option<&str> {
        self.rules.iter().find(|rule| rule.matches(words)).map(|rule| rule.text.as_str())
    }

    /// What a runner runs may begin at any of its words. Of each a few more are looked at, so that a long line takes no
    /// long time.
    fn run(&self, words: &[String]) -> Option<&str> {
        (0..words.len()).find_map(|start| self.rule(&words[start..words.len().min(start + RUN_WORDS)]))
    }
}

impl Rule {
    fn new(text: &str) -> Result<Self> {
        let words = match commands(text).as_deref() {
            Ok([words]) => words.clone(),
            _ => return Err(unusable(&format!("{text:?} is not the beginning of one command"))),
        };
        Ok(Self { text: text.to_owned(), words })
    }

    fn matches(&self, words: &[String]) -> bool {
        let (Some(program), Some(word)) = (self.words.first(), words.first()) else { return false };
        let same = if program.contains('/') { program == word } else { program == name_of(word) };
        same && self.has_flags(&words[1..]) && self.has_arguments(&words[1..])
    }

    /// `-rf` is also `-fr`, `-r -f` and `-rvf`.
    fn has_flags(&self, words: &[String]) -> bool {
        let letters = |words: &[String]| words.iter().filter_map(|word| flags_of(word)).collect::<String>();
        let given = letters(words);
        letters(&self.words[1..]).chars().all(|letter| given.contains(letter))
    }

    /// All others in their order, whatever is between them.
    fn has_arguments(&self, words: &[String]) -> bool {
        let mut words = words.iter();
        let mut wanted = self.words[1..].iter().filter(|word| flags_of(word).is_none());
        wanted.all(|wanted| words.any(|word| word == wanted))
    }
}

/// The letters of a word such as `-rf`.
fn flags_of(word: &str) -> Option<&str> {
    let letters = word.strip_prefix('-')?;
    (!letters.is_empty() && letters.chars().all(char::is_alphanumeric)).then_some(letters)
}

/// A program by its last name.
fn name_of(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// A command without assignments and the shell's own words before it.
fn without_prefixes(words: &[String]) -> &[String] {
    let is_prefix = |word: &String| {
        let name = word.split_once('=').map(|(name, _)| name.strip_suffix('+').unwrap_or(name));
        KEYWORDS.contains(&word.as_str()) || name.is_some_and(is_variable)
    };
    let start = words.iter().position(|word| !is_prefix(word)).unwrap_or(words.len());
    &words[start..]
}

fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
}

fn unusable(why: &str) -> Error {
    Error::invalid(
        format!("A rule on commands can't be used: {why}."),
        "Write a program and words that it must have, such as 'git push'.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(rule: &str, line: &str) -> bool {
        CommandRules::new(&[rule], &[] as &[&str]).unwrap().denies(&line.into()).is_some()
    }

    #[test]
    fn a_program_is_refused_wherever_it_stands_and_however_it_is_written() {
        for line in [
            "curl x",
            "/usr/bin/curl x",
            "'cu'rl x",
            "c\\url x",
            "cd /tmp && curl x",
            "true; curl x",
            "cat f | curl -d @- x",
            "echo $(curl x)",
            "echo `curl x`",
            "echo \"a $(curl x)\"",
            "(curl x)",
            "{ curl x; }",
            "A=1 B=2 curl x",
            "if curl x; then true; fi",
            "while ! curl x; do sleep 1; done",
            "env A=1 curl x",
            "sudo -u nobody curl x",
            "timeout 5 curl x",
            "find . -exec curl {} \\;",
            "echo x | xargs -n 1 curl",
            "sh -c 'curl x'",
            "bash -lc \"cd / && curl x\"",
            "sh -c curl",
            "env sh -c 'sh -c \"curl x\"'",
            "eval curl x",
            "eval 'cu''rl x'",
            "sh <<< 'curl x'",
            "cat <(curl x)",
            "$'\\x63url' x",
            "true &\ncurl x",
        ] {
            assert!(denied("curl", line), "{line}");
        }
    }

    #[test]
    fn a_word_that_is_no_command_is_not_refused() {
        for line in [
            "echo curl",
            "grep curl file",
            "cat curl.txt",
            "curly x",
            "ls # curl",
            "echo 'a; curl x'",
            "apt install bash curl",
            "",
        ] {
            assert!(!denied("curl", line), "{line}");
        }
    }

    #[test]
    fn a_rule_with_words_needs_all_of_them() {
        for line in
            ["rm -rf /", "rm  -rf /", "rm -fr x", "rm -r -f x", "rm -r x -f", "r\\m -rvf x", "/bin/rm -rf x"]
        {
            assert!(denied("rm -rf", line), "{line}");
        }
        assert!(!denied("rm -rf", "rm x") && !denied("rm -rf", "rm -r x") && !denied("rm -rf", "ls -rf"));
        assert!(denied("git push", "git -C /x push origin") && !denied("git push", "git pull"));
        assert!(denied("/opt/tool", "/opt/tool x") && !denied("/opt/tool", "/usr/bin/tool x"));
    }

    #[test]
    fn arguments_without_a_shell_are_words_as_they_are() {
        let rules = CommandRules::new(&["curl"], &[] as &[&str]).unwrap();
        let argv = |words: &[&str]| Command::Argv(words.iter().map(|word| (*word).to_owned()).collect());
        assert!(rules.denies(&argv(&["/usr/bin/curl", "x"])).is_some());
        assert!(rules.denies(&argv(&["sh", "-c", "cd /; curl x"])).is_some());
        assert!(rules.denies(&argv(&["echo", "; curl x"])).is_none());
    }

    #[test]
    fn a_line_that_nobody_can_read_is_refused_where_there_are_rules() {
        let deep = "$(".repeat(1000);
        assert!(denied("curl", &deep));
        assert!(CommandRules::default().denies(&deep.as_str().into()).is_none());
        let mut nested = "true".to_owned();
        for _ in 0..3 {
            nested = format!("sh -c {}", shell_quoted(&nested));
        }
        assert!(!denied("curl", &nested), "{nested}");
    }

    fn shell_quoted(text: &str) -> String {
        format!("'{}'", text.replace('\'', "'\\''"))
    }

    #[test]
    fn a_long_line_takes_no_long_time() {
        let long = "a b c; ".repeat(1 << 17);
        assert!(!denied("curl", &long));
        let quoted = format!("sh -c '{}'", "a 'b' ".repeat(1 << 16));
        assert!(!denied("curl", &quoted));
        let runner = format!("env {}", "rm ".repeat(1 << 18));
        assert!(!denied("rm -rf", &runner));
    }

    #[test]
    fn a_rule_that_says_nothing_is_refused() {
        for rule in ["", "  ", "a; b", "# x"] {
            assert!(CommandRules::new(&[rule], &[] as &[&str]).is_err(), "{rule:?}");
        }
        assert!(CommandRules::new(&[] as &[&str], &[""]).is_err());
    }
}
