//! Errors of the command line: clap's message, with better suggestions.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use sandpod::Escaped;
use sandpod_text::nearest;

use crate::command_line;
use crate::output::print_to_stderr;

/// Tips for unknown arguments, by command.
const TIPS: [(&str, &str); 3] = [
    ("run", "put '--' before a program with arguments, or quote the whole line: sandpod run 'ls -l'"),
    ("exec", "put '--' before the program, or give a quoted line after -c: sandpod exec ID -- ls -l"),
    ("kill", "name the signal with --signal: sandpod kill ID PROCESS --signal 9"),
];
/// The options of `docker exec` and `kubectl exec` that request a terminal.
const TERMINAL: [&str; 2] = ["-i", "-t"];
const TERMINAL_TIP: &str = "open a terminal in a sandbox with the command shell: sandpod shell ID -- bash";
/// Names of other tools' commands, with the command that does the same here.
const FOREIGN_COMMANDS: [(&str, &str); 4] =
    [("connect", "shell"), ("ssh", "shell"), ("start", "create"), ("stop", "delete")];

/// Prints the error and returns its exit code. Clap reports `--help` and `--version` as errors, too.
pub(crate) fn report(mut error: clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::InvalidSubcommand => suggest_command(&mut error),
        ErrorKind::UnknownArgument => suggest_argument(&mut error),
        _ => {}
    }
    if arguments().any(|word| word.contains(char::is_control)) {
        print_to_stderr(Escaped(&error.render().to_string()).whole().trim_end());
    } else {
        let _ = error.print(); // The reader may have closed the pipe.
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Replaces clap's suggestion of a command, which often ranks another command first.
fn suggest_command(error: &mut clap::Error) {
    let Some(given) = text(error, ContextKind::InvalidSubcommand) else { return };
    let line = command_line();
    // Subcommands of a command are few, and clap suggests the right one.
    if arguments().take_while(|word| *word != given).any(|word| line.find_subcommand(word).is_some()) {
        return;
    }
    error.remove(ContextKind::SuggestedSubcommand);
    if let Some(command) = command(&given, line.get_subcommands().map(clap::Command::get_name)) {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::String(command.to_owned()));
    }
}

fn command<'a>(given: &str, commands: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let elsewhere = FOREIGN_COMMANDS.iter().find(|(name, _)| *name == given).map(|(_, ours)| *ours);
    elsewhere.or_else(|| nearest(given, commands))
}

fn suggest_argument(error: &mut clap::Error) {
    let given = text(error, ContextKind::InvalidArg).unwrap_or_default();
    if text(error, ContextKind::SuggestedArg).is_some_and(|arg| nearest(&given, [arg.as_str()]).is_none()) {
        error.remove(ContextKind::SuggestedArg);
    }
    if let Some(tip) = tip(&given, arguments().take_while(|word| word != "--")) {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
}

/// The arguments as typed, without the program.
fn arguments() -> impl Iterator<Item = String> {
    std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned())
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    }
}

fn tip(given: &str, mut arguments: impl Iterator<Item = String>) -> Option<&'static str> {
    let with_tip = |word: String| TIPS.iter().find(|(command, _)| *command == word);
    let (command, tip) = arguments.find_map(with_tip)?;
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
    fn the_tip_is_that_of_the_first_command_with_a_tip() {
        assert!(tip_for("--mode local run ls -l").is_some_and(|tip| tip.contains("sandpod run 'ls -l'")));
        assert!(tip_for("kill demo -9 p1").is_some_and(|tip| tip.contains("--signal 9")));
        assert_eq!(tip_for("list -z"), None);
    }

    #[test]
    fn terminal_options_of_docker_exec_suggest_the_shell_command() {
        assert_eq!(tip("-i", ["exec".to_owned()].into_iter()), Some(TERMINAL_TIP));
        assert_eq!(tip("-i", ["grep".to_owned()].into_iter()), None);
    }

    #[test]
    fn commands_of_other_tools_are_mapped_to_ours() {
        let commands = || ["run", "delete", "resume"].into_iter();
        assert_eq!(command("stop", commands()), Some("delete"));
        assert_eq!(command("rnu", commands()), Some("run"));
        assert_eq!(command("frobnicate", commands()), None);
    }

    #[test]
    fn typos_and_prefixes_find_the_intended_command() {
        let line = command_line();
        let suggestion = |given| command(given, line.get_subcommands().map(clap::Command::get_name));
        let typed = [
            ("rnu", "run"),
            ("rn", "run"),
            ("crete", "create"),
            ("delte", "delete"),
            ("comp", "completions"),
        ];
        for (given, meant) in typed {
            assert_eq!(suggestion(given), Some(meant), "{given}");
        }
        for nothing in ["", "x", "frobnicate"] {
            assert_eq!(suggestion(nothing), None, "{nothing}");
        }
    }
}
