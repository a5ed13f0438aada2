//! The layout of the help: groups of commands, and the options that matter for a command.

use clap::Command;

/// The help of the command line, with the groups of commands.
pub(crate) const TEMPLATE: &str = "\
{about}

{usage-heading} {usage}

Run commands:
  run          Run a command in a new sandbox, then delete the sandbox
  exec         Run a command in a sandbox
  shell        Open a shell in a sandbox, or in a new one
  ps           List the commands that were started in a sandbox
  logs         Print the output of started commands
  attach       Attach stdin and stdout to a started command
  kill         Send a signal to a started command and its child processes

Sandboxes:
  create       Create a sandbox that is kept, and print its details
  list         List sandboxes
  info         Print the details of a sandbox
  stats        Count sandboxes, or show the resource usage of one
  extend       Extend the lifetime of a sandbox
  suspend      Delete the Pod of a sandbox and keep its volumes until it is resumed
  resume       Create a new Pod for a suspended sandbox
  delete       Delete sandboxes and everything in them

Files of a sandbox:
  cp           Copy files and directories into a sandbox, or out of it
  ls           List a directory of a sandbox
  cat          Print files of a sandbox
  write        Write stdin to a file of a sandbox
  rm           Remove files of a sandbox
  mv           Move a file or directory within a sandbox
  grep         Search for text in the files of a sandbox
  glob         Find files of a sandbox by pattern

Set-up and operation:
  doctor       Check whether sandboxes work here, and print fixes
  config       Show the configuration and the source of each value
  manifests    Print Kubernetes manifests: namespace, RBAC, reaper, policies, templates
  gc           Delete expired sandboxes and orphaned objects
  pool         Show the warm pool
  completions  Print a shell completion script
  help         Print this message or the help of a command

{all-args}{after-help}";

/// Commands that create sandboxes.
const CREATING: [&str; 3] = ["run", "create", "shell"];
/// Options of new sandboxes, which other commands accept and ignore.
const OF_NEW_SANDBOXES: [&str; 5] = ["image", "template", "warm_pool", "ttl", "idle_ttl"];
/// Options of connections to guests in a cluster.
const OF_CONNECTIONS: [&str; 4] = ["connection_mode", "gateway_name", "gateway_namespace", "api_url"];
/// Options that select a cluster.
const OF_CLUSTERS: [&str; 3] = ["namespace", "context", "kubeconfig"];
/// Commands that connect to a guest, beside those that create sandboxes.
const CONNECTING: [&str; 15] = [
    "exec", "ps", "logs", "attach", "kill", "stats", "resume", "cp", "ls", "cat", "write", "rm", "mv",
    "grep", "glob",
];
/// Commands that show or check the whole configuration.
const CONFIGURING: [&str; 2] = ["config", "doctor"];
/// Commands that print a text and use no sandbox.
const PRINTING: [&str; 1] = ["completions"];

/// Hides the options that do not matter for the command of these arguments from its help. They are still accepted.
pub(crate) fn for_arguments(line: Command) -> Command {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let typed = words.skip_while(|word| word == "help").find(|word| line.find_subcommand(word).is_some());
    match typed {
        Some(command) => for_command(line, &command),
        None => without_list(line),
    }
}

/// Hides the commands from clap's own list, because [`TEMPLATE`] has them in groups.
fn without_list(mut line: Command) -> Command {
    // Adds the command `help`.
    line.build();
    let names: Vec<String> = line.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    names.iter().fold(line, |line, name| line.mut_subcommand(name, |command| command.hide(true)))
}

fn for_command(line: Command, command: &str) -> Command {
    let has_all = CREATING.contains(&command) || CONFIGURING.contains(&command);
    let is_shown = |option: &str| {
        if OF_NEW_SANDBOXES.contains(&option) {
            return has_all || (option, command) == ("image", "manifests");
        }
        if OF_CONNECTIONS.contains(&option) {
            return has_all || CONNECTING.contains(&command);
        }
        !OF_CLUSTERS.contains(&option) || !PRINTING.contains(&command)
    };
    let all = OF_NEW_SANDBOXES.iter().chain(&OF_CONNECTIONS).chain(&OF_CLUSTERS);
    all.filter(|option| !is_shown(option))
        .fold(line, |line, option| line.mut_arg(option, |arg| arg.hide(true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_group_with_its_description() {
        let line = crate::command_line();
        for command in line.get_subcommands().filter(|command| !command.is_hide_set()) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let row = format!("\n  {:12} {about}\n", command.get_name());
            assert_eq!(TEMPLATE.matches(&row).count(), 1, "{row}");
        }
    }

    #[test]
    fn options_that_do_not_matter_for_a_command_are_hidden() {
        let is_hidden = |command: &str, option: &str| {
            let line = for_command(crate::command_line(), command);
            line.get_arguments().any(|argument| argument.get_id() == option && argument.is_hide_set())
        };
        assert!(
            is_hidden("ls", "image")
                && is_hidden("list", "gateway_name")
                && is_hidden("manifests", "ttl")
                && is_hidden("completions", "context")
        );
        assert!(
            !is_hidden("ls", "namespace") && !is_hidden("run", "image") && !is_hidden("create", "api_url")
        );
        assert!(!is_hidden("manifests", "image") && !is_hidden("exec", "connection_mode"));
    }
}
