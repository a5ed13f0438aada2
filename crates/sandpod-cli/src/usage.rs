//! Errors of the command line: clap's message, with better suggestions.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use sandpod::Escaped;
use sandpod_text::nearest;

use crate::command_line;
use crate::line::positionals;
use crate::output::print_to_stderr;

/// Tips for unknown arguments, by command.
const TIPS: [(&str, &str); 3] = [
    ("run", "options of the command follow its first word: sandpod run ls -l"),
    ("exec", "options of the command follow its first word: sandpod exec ID ls -l"),
    ("kill", "name the signal with --signal: sandpod kill ID PROCESS --signal 9"),
];
/// Names of other tools' commands, with the command that does the same here.
const FOREIGN_COMMANDS: [(&str, &str); 7] = [
    ("connect", "shell"),
    ("ssh", "shell"),
    ("start", "create"),
    ("inspect", "info"),
    ("describe", "info"),
    ("get", "list"),
    ("top", "stats"),
];

/// Prints the error and returns its exit code. Clap reports `--help` and `--version` as errors, too.
pub(crate) fn report(mut error: clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::InvalidSubcommand => suggest_command(&mut error),
        ErrorKind::UnknownArgument => suggest_argument(&mut error),
        ErrorKind::MissingRequiredArgument => suggest_command_for_sandboxes(&mut error),
        _ => {}
    }
    if arguments().any(|word| word.contains(char::is_control)) {
        print_to_stderr(Escaped(&error.render().to_string()).whole().trim_end());
    } else {
        let _ = error.print(); // The reader may have closed the pipe.
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Commands on sandboxes, for habits from docker, kubectl and the shell: the command as typed without its paths or id.
const SANDBOX_COMMANDS: [(&str, &str); 4] = [
    ("ls", "to list sandboxes, use: sandpod list"),
    ("ps", "to list sandboxes, use: sandpod list"),
    ("rm", "to delete a sandbox, use: sandpod delete ID"),
    ("info", "to list sandboxes, use: sandpod list"),
];
const STOP_TIP: &str = "sandboxes run until they are deleted: sandpod delete ID deletes one, sandpod kill ID PROCESS ends a \
    command in it, and sandpod suspend ID keeps the volumes (agent-sandbox mode)";

/// Adds the command on sandboxes that was probably meant by a command on files or processes without an id.
fn suggest_command_for_sandboxes(error: &mut clap::Error) {
    if let Some(tip) = tip(&SANDBOX_COMMANDS, arguments()) {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
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
    if given == "stop" {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![STOP_TIP.into()]));
        return;
    }
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
    if let Some(tip) = tip(&TIPS, arguments()) {
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

/// Returns the tip for the command of these arguments.
fn tip(tips: &[(&str, &'static str)], arguments: impl Iterator<Item = String>) -> Option<&'static str> {
    let typed = positionals(arguments).into_iter().next()?;
    tips.iter().find(|(command, _)| *command == typed).map(|(_, tip)| *tip)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> impl Iterator<Item = String> {
        line.split(' ').map(str::to_owned)
    }

    fn tip_for(line: &str) -> Option<&'static str> {
        tip(&TIPS, words(line))
    }

    #[test]
    fn the_tip_is_that_of_the_subcommand() {
        assert!(tip_for("--mode local run ls -l").is_some_and(|tip| tip.contains("sandpod run ls -l")));
        assert!(tip_for("kill demo -9 p1").is_some_and(|tip| tip.contains("--signal 9")));
        for other in ["list -z", "logs run -z", "--namespace run list -z"] {
            assert_eq!(tip_for(other), None, "{other}");
        }
        assert!(tip(&SANDBOX_COMMANDS, words("-n x ps")).is_some());
        assert_eq!(tip(&SANDBOX_COMMANDS, words("write ps")), None);
    }

    #[test]
    fn commands_of_other_tools_are_mapped_to_ours() {
        let commands = || ["run", "delete", "resume"].into_iter();
        assert_eq!(command("ssh", commands()), Some("shell"));
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
