//! The command that `run` and `exec` start: the words at the end of the command line, or a line for the shell.

use std::ffi::OsString;

use clap::{Args, ValueHint};
use sandpod::Command;

use crate::exit::{Failure, Result};

// The command to start. No doc comment: it would replace the help of the command.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct CommandWords {
    /// Command line for the shell
    #[arg(short = 'c', long = "line", value_name = "LINE", conflicts_with = "words")]
    line: Option<String>,
    /// Program and arguments; a single argument is a line for the shell
    #[arg(trailing_var_arg = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    words: Vec<String>,
}

impl CommandWords {
    /// Returns the command. Several words, or words after `--`, are a program with its arguments; a single word is a line.
    pub(crate) fn command(self) -> Result<Command> {
        let is_explicit = follows_dashes(&std::env::args_os().collect::<Vec<_>>(), &self.words);
        self.interpreted(is_explicit)
    }

    /// Returns the first word of the command, unless a line is given.
    pub(crate) fn first(&self) -> Option<&str> {
        self.words.first().map(String::as_str)
    }

    fn interpreted(self, is_explicit: bool) -> Result<Command> {
        match (self.line, self.words) {
            (Some(line), _) => Ok(Command::Line(line)),
            (None, words) if words.is_empty() => Err(Failure::usage(
                "The command to run is missing.",
                "Give a program and its arguments, such as `ls -l`, or a quoted line for the shell, such as 'ls | wc -l'.",
            )),
            (None, mut words) if words.len() == 1 && !is_explicit => Ok(Command::Line(words.remove(0))),
            (None, words) if !is_explicit && words[0].contains(char::is_whitespace) => Err(Failure::usage(
                format!("More words follow the quoted line '{}'.", words[0]),
                "Quote the whole line, and put options of sandpod before it. For a program whose name has spaces, put `--` before the name.",
            )),
            (None, words) => Ok(Command::Argv(words)),
        }
    }
}

/// Reports whether `--` comes directly before the words, which are the last arguments.
fn follows_dashes(arguments: &[OsString], words: &[String]) -> bool {
    let before = arguments.len().checked_sub(words.len() + 1);
    before.is_some_and(|before| arguments[before] == "--")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> CommandWords {
        CommandWords { line: None, words: words.iter().map(|word| (*word).to_owned()).collect() }
    }

    #[test]
    fn several_words_are_a_program_and_one_is_a_line() {
        let argv = |words: &[&str]| Command::Argv(words.iter().map(|word| (*word).to_owned()).collect());
        let read =
            |given: &[&str], is_explicit| format!("{:?}", words(given).interpreted(is_explicit).unwrap());
        assert_eq!(read(&["ls", "-l"], false), format!("{:?}", argv(&["ls", "-l"])));
        assert_eq!(read(&["ls | wc"], false), format!("{:?}", Command::Line("ls | wc".to_owned())));
        assert_eq!(read(&["a program"], true), format!("{:?}", argv(&["a program"])));
        assert_eq!(read(&["a program", "x"], true), format!("{:?}", argv(&["a program", "x"])));
    }

    #[test]
    fn an_option_after_a_quoted_line_is_refused() {
        let refused = words(&["echo hi", "--mode", "raw"]).interpreted(false).unwrap_err().to_string();
        assert!(
            refused.contains("'echo hi'") && refused.contains("put options of sandpod before"),
            "{refused}"
        );
        assert!(words(&[]).interpreted(false).unwrap_err().to_string().contains("is missing"));
    }

    #[test]
    fn dashes_are_found_directly_before_the_words_only() {
        let arguments = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let one = ["x".to_owned()];
        assert!(follows_dashes(&arguments("sandpod run -- x"), &one));
        assert!(!follows_dashes(&arguments("sandpod run x"), &one));
        let three = ["x", "--", "y"].map(str::to_owned);
        assert!(!follows_dashes(&arguments("sandpod run x -- y"), &three));
    }
}
