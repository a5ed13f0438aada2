//! `sandpod completions`: prints a completion script.

use clap::Args;
use clap_complete::Shell;

use super::Context;
use crate::exit::Result;
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
    clap_complete::generate(arguments.shell, &mut crate::command_line(), "sandpod", &mut script);
    print_bytes(&script)
}
