//! `sandpod completions`: what a shell needs to complete our words.

use clap::Args;
use clap_complete::Shell;

use super::Context;
use crate::exit::Result;
use crate::output::put_bytes;

const EXAMPLES: &str = "\
Examples:
  source <(sandpod completions bash)
  sandpod completions zsh > \"${fpath[1]}/_sandpod\"
  sandpod completions fish > ~/.config/fish/completions/sandpod.fish";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The shell
    shell: Shell,
}

/// Prints the script.
pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<()> {
    context.refuse_json("a script is for a shell")?;
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut crate::command_line(), "sandpod", &mut script);
    put_bytes(&script)
}
