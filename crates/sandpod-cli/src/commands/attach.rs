//! `sandpod attach`: taking part in a command that goes on by itself.

use std::process::ExitCode;

use clap::Args;

use super::Context;
use crate::exit::{Failure, Result};
use crate::follow::{Sink, follow, send_input};
use crate::interrupt::Interrupts;
use crate::processes::find;
use crate::session::{Ended, Leaving, interact};
use crate::terminal::{is_interactive, may_read};

const EXAMPLES: &str = "\
Ctrl-C leaves the command, which goes on; a command in a terminal is left with Ctrl-]. \
If it ends before, the exit code is its own.

Examples:
  sandpod attach ID                  the command that was started last
  sandpod attach ID PROCESS --from-start";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The sandbox
    id: String,
    /// The command's name or process number, as ps shows them; without one the last that was started
    process: Option<String>,
    /// Show what it wrote before, too, as far as it is kept
    #[arg(long)]
    from_start: bool,
}

/// Follows the command until it ends or is left.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<ExitCode> {
    context.refuse_json("what a command does goes on")?;
    let mut interrupts = Interrupts::listen()?;
    let target = context.target()?;
    let handle = interrupts.or(target.sandbox(&arguments.id)).await?;
    let found = interrupts.or(find(&handle.sandbox, arguments.process.as_deref())).await?;
    let process = &found.process;
    let offset = if arguments.from_start || found.exit.is_some() { 0 } else { found.output_end };
    let ended = if found.terminal && found.exit.is_none() && is_interactive() {
        interact(process, offset, Leaving::Allowed, &mut interrupts, &context.output).await
    } else {
        let input = may_read().then(|| send_input(process.clone(), context.output.clone()));
        let mut sink = Sink::streams();
        let ended = tokio::select! {
            exit = follow(process, offset, &mut sink, &context.output) => exit.map(Ended::Exit),
            _ = interrupts.next() => Ok(Ended::Left),
        };
        if let Some(input) = input {
            input.abort();
        }
        ended
    };
    let ended = ended.map_err(Failure::after_start)?;
    if matches!(ended, Ended::Left) {
        context.output.note(&format!("left; {} goes on", process.name()));
    }
    Ok(ended.exit_code())
}
