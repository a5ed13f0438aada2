//! A command line that can't be understood: clap says what is wrong with it, and we what was probably meant.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use sandpod::Escaped;

use crate::command_line;
use crate::likeness::nearest;
use crate::output::say;

/// What people mean by words that a command doesn't know.
const TIPS: [(&str, &str); 3] = [
    ("run", "put '--' before a program with arguments, or quote the whole line: sandpod run 'ls -l'"),
    ("exec", "put '--' before the program, or give a quoted line after -c: sandpod exec ID -- ls -l"),
    ("kill", "name the signal with --signal: sandpod kill ID PROCESS --signal 9"),
];
/// How others ask for a terminal, and what we have for it.
const TERMINAL: [&str; 2] = ["-i", "-t"];
const TERMINAL_TIP: &str = "a terminal in a sandbox is a command of its own: sandpod shell ID -- bash";
/// What commands are called elsewhere.
const ELSEWHERE: [(&str, &str); 4] =
    [("connect", "shell"), ("ssh", "shell"), ("start", "create"), ("stop", "delete")];

/// Says what is wrong, or what was asked for: help and the version come this way, too.
pub(crate) fn refuse(mut error: clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::InvalidSubcommand => suggest_command(&mut error),
        ErrorKind::UnknownArgument => suggest_argument(&mut error),
        _ => {}
    }
    if words().any(|word| word.contains(char::is_control)) {
        say(Escaped(&error.render().to_string()).whole().trim_end());
    } else {
        let _ = error.print(); // Whoever reads it may have gone.
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Clap's own idea of what is alike puts others before what was meant.
fn suggest_command(error: &mut clap::Error) {
    let Some(given) = text(error, ContextKind::InvalidSubcommand) else { return };
    let line = command_line();
    // Of the few that a command has of its own clap finds the right one.
    if words().take_while(|word| *word != given).any(|word| line.find_subcommand(word).is_some()) {
        return;
    }
    error.remove(ContextKind::SuggestedSubcommand);
    if let Some(command) = command(&given, line.get_subcommands().map(clap::Command::get_name)) {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::String(command.to_owned()));
    }
}

fn command<'a>(given: &str, commands: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let elsewhere = ELSEWHERE.iter().find(|(name, _)| *name == given).map(|(_, ours)| *ours);
    elsewhere.or_else(|| nearest(given, commands))
}

fn suggest_argument(error: &mut clap::Error) {
    let given = text(error, ContextKind::InvalidArg).unwrap_or_default();
    if text(error, ContextKind::SuggestedArg)
        .is_some_and(|arg| nearest(&given, [arg.as_str()].into_iter()).is_none())
    {
        error.remove(ContextKind::SuggestedArg);
    }
    if let Some(tip) = tip(&given, words().take_while(|word| word != "--")) {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
}

/// What was typed after our name.
fn words() -> impl Iterator<Item = String> {
    std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned())
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    }
}

fn tip(given: &str, mut words: impl Iterator<Item = String>) -> Option<&'static str> {
    let known = |word: String| TIPS.iter().find(|(command, _)| *command == word);
    let (command, tip) = words.find_map(known)?;
    let wants_terminal = TERMINAL.contains(&given) && *command != "kill";
    Some(if wants_terminal { TERMINAL_TIP } else { tip })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tip_for(line: &str) -> Option<&'static str> {
        tip("-x", line.split(' ').map(str::to_owned))
    }

    #[test]
    fn the_first_command_that_has_a_tip_gives_it() {
        assert!(tip_for("--mode local run ls -l").is_some_and(|tip| tip.contains("sandpod run 'ls -l'")));
        assert!(tip_for("kill demo -9 p1").is_some_and(|tip| tip.contains("--signal 9")));
        assert_eq!(tip_for("list -z"), None);
    }

    #[test]
    fn who_asks_for_a_terminal_as_elsewhere_is_told_of_shell() {
        assert_eq!(tip("-i", ["exec".to_owned()].into_iter()), Some(TERMINAL_TIP));
        assert_eq!(tip("-i", ["grep".to_owned()].into_iter()), None);
    }

    #[test]
    fn a_command_that_is_called_otherwise_elsewhere_is_known() {
        let commands = || ["run", "delete", "resume"].into_iter();
        assert_eq!(command("stop", commands()), Some("delete"));
        assert_eq!(command("rnu", commands()), Some("run"));
        assert_eq!(command("frobnicate", commands()), None);
    }
}
