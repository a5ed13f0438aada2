//! `sandpod attach`: connects to a command that was started in the background.

use std::process::ExitCode;

use clap::Args;

use super::Context;
use crate::complete::{processes, sandboxes};
use crate::exit::{Failure, Result};
use crate::follow::{Sink, follow, send_input};
use crate::interactive::{Ended, interact};
use crate::interrupt::Interrupts;
use crate::processes::find;
use crate::terminal::{can_read_stdin, is_interactive};

const EXAMPLES: &str = "\
Ctrl-C detaches, and the command continues; use Ctrl-] for a command in a terminal. The exit code is \
the command's if it ends first.

Examples:
  sandpod attach ID                  attach to the command that was started last
  sandpod attach ID PROCESS --from-start";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Sandbox id
    #[arg(add = sandboxes())]
    id: String,
    /// Name or process number of the command, as in sandpod ps [default: the last started command]
    #[arg(add = processes())]
    process: Option<String>,
    /// Also print earlier output, as far as it is kept
    #[arg(long)]
    from_start: bool,
}

/// Follows the command until it ends or we detach.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<ExitCode> {
    context.refuse_json("it streams the output")?;
    let mut interrupts = Interrupts::listen()?;
    let target = context.target()?;
    let handle = interrupts.unless_interrupted(target.sandbox(&arguments.id)).await?;
    let found = interrupts.unless_interrupted(find(&handle.sandbox, arguments.process.as_deref())).await?;
    let process = &found.process;
    let offset = if arguments.from_start || found.exit.is_some() { 0 } else { found.output_end };
    let ended = if found.terminal && found.exit.is_none() && is_interactive() {
        interact(process, offset, &mut Sink::terminal(), &mut interrupts, &context.output).await
    } else {
        let input = can_read_stdin().then(|| send_input(process.clone(), context.output.clone()));
        let mut sink = Sink::streams();
        let ended = tokio::select! {
            exit = follow(process, offset, &mut sink, &context.output) => exit.map(Ended::Exit),
            _ = interrupts.next() => Ok(Ended::Detached),
        };
        if let Some(input) = input {
            input.abort();
        }
        ended
    };
    let ended = ended.map_err(Failure::after_start)?;
    if matches!(ended, Ended::Detached) {
        context.output.note(&format!("detached; {} continues", process.name()));
    }
    Ok(ended.exit_code())
}
