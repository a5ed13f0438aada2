//! A command line that can't be understood: clap says what is wrong with it, and we what was probably meant.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use sandpod::Shown;

use crate::output::say;

/// What people mean by words that a command doesn't know.
const TIPS: [(&str, &str); 3] = [
    ("run", "put '--' before a program with arguments, or quote the whole line: sandpod run 'ls -l'"),
    ("exec", "put '--' before the program, or give a quoted line after -c: sandpod exec ID -- ls -l"),
    ("kill", "name the signal with --signal: sandpod kill ID PROCESS --signal 9"),
];

/// Says what is wrong, or what was asked for: help and the version come this way, too.
pub(crate) fn refuse(mut error: clap::Error) -> ExitCode {
    let words = std::env::args().skip(1).take_while(|word| word != "--");
    if let Some(tip) = tip(error.kind(), words) {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    if std::env::args().any(|word| word.contains(char::is_control)) {
        say(Shown(&error.render().to_string()).whole().trim_end());
    } else {
        let _ = error.print(); // Whoever reads it may have gone.
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

fn tip(kind: ErrorKind, mut words: impl Iterator<Item = String>) -> Option<&'static str> {
    let known = |word: &str| TIPS.iter().find(|(command, _)| *command == word).map(|(_, tip)| *tip);
    if kind == ErrorKind::UnknownArgument { words.find_map(|word| known(&word)) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tip_for(line: &str) -> Option<&'static str> {
        tip(ErrorKind::UnknownArgument, line.split(' ').map(str::to_owned))
    }

    #[test]
    fn the_first_command_that_has_a_tip_gives_it() {
        assert!(tip_for("--mode local run ls -l").is_some_and(|tip| tip.contains("sandpod run 'ls -l'")));
        assert!(tip_for("kill demo -9 p1").is_some_and(|tip| tip.contains("--signal 9")));
        assert_eq!(tip_for("list -z"), None);
    }

    #[test]
    fn other_mistakes_have_words_of_their_own() {
        assert_eq!(tip(ErrorKind::InvalidValue, ["run".to_owned()].into_iter()), None);
    }
}
