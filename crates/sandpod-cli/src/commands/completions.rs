//! `sandpod completions`: prints a completion script.

use clap::Args;
use clap_complete::Shell;
use clap_complete::env::Shells;

use super::Context;
use crate::exit::{Failure, Result};
use crate::output::print_bytes;

const EXAMPLES: &str = "\
Examples:
  source <(sandpod completions bash)
  sandpod completions zsh > \"${fpath[1]}/_sandpod\"
  sandpod completions fish > ~/.config/fish/completions/sandpod.fish";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Shell of the script
    shell: Shell,
}

/// Prints the script.
pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<()> {
    context.refuse_json("it prints a script")?;
    let mut script = Vec::new();
    let shells = Shells::builtins();
    let name = arguments.shell.to_string();
    let shell = shells.completer(&name);
    let shell = shell.ok_or_else(|| {
        Failure::usage(
            format!("There is no completion for {name}."),
            "Use bash, zsh, fish, elvish or powershell.",
        )
    })?;
    // The script runs `sandpod` for each completion, which lists sandboxes, paths and commands.
    let written = shell.write_registration("COMPLETE", "sandpod", "sandpod", "sandpod", &mut script);
    written.map_err(|cause| Failure::local("write the script", &cause))?;
    print_bytes(&script)
}
