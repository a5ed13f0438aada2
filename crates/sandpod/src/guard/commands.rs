//! The denylist of commands, which is checked before a command is sent.
//!
//! [`CommandRules`] hold programs (`rm -rf`) and texts. They are a guard rail for agents and not a security boundary:
//! a variable, a script or another language gets around every rule on words. The sandbox itself enforces limits: its
//! roots, its network and the Pod.

mod lines;

use std::borrow::Cow;

use sandpod_client::Command;

use self::lines::{TooDeep, Words, commands};
use crate::{Error, Result};

/// The maximum depth of command lines in command lines (`sh -c "sh -c …"`).
const MAX_LINES: usize = 8;
/// The number of words that are compared of a command that a runner starts.
const RUN_WORDS: usize = 64;
/// Programs that run a command from their arguments.
const RUNNERS: [&str; 23] = [
    "builtin", "busybox", "chroot", "command", "doas", "env", "exec", "find", "flock", "ionice", "nice",
    "nohup", "nsenter", "parallel", "setsid", "stdbuf", "strace", "sudo", "time", "timeout", "unshare",
    "watch", "xargs",
];
/// Programs that accept a command line as an argument.
const SHELLS: [&str; 9] = ["ash", "bash", "busybox", "dash", "ksh", "mksh", "sh", "su", "zsh"];
/// Shell keywords that can precede a command.
const KEYWORDS: [&str; 12] =
    ["!", "{", "}", "do", "elif", "else", "if", "then", "time", "until", "while", "coproc"];

/// A denylist of commands.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CommandRules {
    rules: Vec<Rule>,
    texts: Vec<String>,
}

/// A program, and the words that a command must have to be denied.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Rule {
    text: String,
    words: Words,
}

impl CommandRules {
    /// Creates a denylist from rules such as `curl`, `rm -rf` and `git push`, and from texts that no command may
    /// contain. A rule that is not the beginning of exactly one command is an error, and so is an empty text.
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

    /// Returns the rule that denies the command, if any.
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
            // A line that is too deep to parse is denied.
            Err(TooDeep) => Some("nesting limit"),
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
        // Any argument of a shell may be a command line.
        let is_shell = |word: &String| SHELLS.contains(&name_of(word));
        let shell = words.iter().position(is_shell).filter(|at| *at == 0 || is_runner)?;
        let arguments = words[shell + 1..].iter().filter(|word| !word.starts_with('-'));
        arguments.into_iter().find_map(|word| self.line(word, depth + 1))
    }

    fn rule(&self, words: &[String]) -> Option<&str> {
        self.rules.iter().find(|rule| rule.matches(words)).map(|rule| rule.text.as_str())
    }

    /// Checks each word of a runner's arguments as the beginning of a command. A limited number of words is compared
    /// for each, so the time stays linear in the length of the line.
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

    /// Returns whether the command has all flag letters of the rule: `-rf` also matches `-fr`, `-r -f` and `-rvf`.
    fn has_flags(&self, words: &[String]) -> bool {
        let letters = |words: &[String]| words.iter().filter_map(|word| flags_of(word)).collect::<String>();
        let given = letters(words);
        letters(&self.words[1..]).chars().all(|letter| given.contains(letter))
    }

    /// Returns whether the other words of the rule occur in their order, with any words between them.
    fn has_arguments(&self, words: &[String]) -> bool {
        let mut words = words.iter();
        let mut wanted = self.words[1..].iter().filter(|word| flags_of(word).is_none());
        wanted.all(|wanted| words.any(|word| word == wanted))
    }
}

/// Returns the letters of a flag word such as `-rf`.
fn flags_of(word: &str) -> Option<&str> {
    let letters = word.strip_prefix('-')?;
    (!letters.is_empty() && letters.chars().all(char::is_alphanumeric)).then_some(letters)
}

/// Returns the last component of a program's path.
fn name_of(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// Removes variable assignments and shell keywords before a command.
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
    fn denied_program_is_found_at_every_position_and_spelling() {
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
    fn words_that_are_not_commands_are_allowed() {
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
    fn rule_with_several_words_matches_only_if_all_are_present() {
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
    fn argv_without_a_shell_is_not_parsed_as_a_line() {
        let rules = CommandRules::new(&["curl"], &[] as &[&str]).unwrap();
        let argv = |words: &[&str]| Command::Argv(words.iter().map(|word| (*word).to_owned()).collect());
        assert!(rules.denies(&argv(&["/usr/bin/curl", "x"])).is_some());
        assert!(rules.denies(&argv(&["sh", "-c", "cd /; curl x"])).is_some());
        assert!(rules.denies(&argv(&["echo", "; curl x"])).is_none());
    }

    #[test]
    fn too_deeply_nested_line_is_denied_if_there_are_rules() {
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
    fn long_lines_are_checked_in_linear_time() {
        let long = "a b c; ".repeat(1 << 17);
        assert!(!denied("curl", &long));
        let quoted = format!("sh -c '{}'", "a 'b' ".repeat(1 << 16));
        assert!(!denied("curl", &quoted));
        let runner = format!("env {}", "rm ".repeat(1 << 18));
        assert!(!denied("rm -rf", &runner));
    }

    #[test]
    fn empty_or_ambiguous_rules_are_rejected() {
        for rule in ["", "  ", "a; b", "# x"] {
            assert!(CommandRules::new(&[rule], &[] as &[&str]).is_err(), "{rule:?}");
        }
        assert!(CommandRules::new(&[] as &[&str], &[""]).is_err());
    }
}
