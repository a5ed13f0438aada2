//! `sandpod shell`: opens a shell in a sandbox.

use std::process::ExitCode;

use clap::Args;
use sandpod::{Command, ExecuteOptions, Sandbox, StartOptions};

use super::Context;
use super::exec::Finished;
use super::run::in_new_sandbox;
use crate::exit::{Failure, Result};
use crate::follow::Sink;
use crate::interactive::{Detaching, Ended, interact};
use crate::interrupt::Interrupts;
use crate::output::Output;
use crate::target::Labels;
use crate::terminal::{is_interactive, size};

/// Runs bash, or sh where the image has no bash.
const SHELL: &str = "if command -v bash > /dev/null; then exec bash -i; else exec sh -i; fi";
/// The terminal type where TERM is not set.
const TERM: &str = "xterm";
/// The signal that a closed terminal sends to its programs.
const SIGHUP: i32 = 1;

const EXAMPLES: &str = "\
Without ID, the shell runs in a new sandbox, which is deleted when the shell exits.

Examples:
  sandpod shell
  sandpod shell ID
  sandpod shell ID -- vi /workspace/notes.txt";

#[derive(Args)]
#[command(
    override_usage = "sandpod shell [OPTIONS] [ID] [-- PROGRAM [ARGUMENT]...]",
    after_help = EXAMPLES
)]
pub(crate) struct Arguments {
    /// Sandbox id
    id: Option<String>,
    #[command(flatten)]
    labels: Labels,
    /// Program and arguments to run instead of a shell
    #[arg(last = true)]
    argv: Vec<String>,
}

/// Opens the shell and returns its exit code.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<ExitCode> {
    context.refuse_json("it is interactive")?;
    if !is_interactive() {
        return Err(Failure::usage(
            "A shell requires a terminal, but stdin or stdout is not one.",
            "In scripts, use `sandpod exec ID -c 'LINE'`.",
        ));
    }
    let command = match arguments.argv {
        argv if argv.is_empty() => Command::from(SHELL),
        argv => Command::Argv(argv),
    };
    let (target, output) = (context.target()?, &context.output);
    let Some(id) = arguments.id else {
        let ran = in_new_sandbox(&target, &arguments.labels, output, async |sandbox, interrupts, output| {
            open(sandbox, command, interrupts, output).await
        });
        return ran.await?.report(output);
    };
    let mut interrupts = Interrupts::listen()?;
    let finding = async { target.sandbox(&id).await.map_err(Failure::before_start) };
    let handle = interrupts.unless_interrupted(finding).await?;
    open(&handle.sandbox, command, &mut interrupts, output).await?.report(output)
}

async fn open(
    sandbox: &Sandbox,
    command: Command,
    interrupts: &mut Interrupts,
    output: &Output,
) -> Result<Finished> {
    let term = std::env::var("TERM").unwrap_or_else(|_| TERM.to_owned());
    let options = StartOptions {
        run: ExecuteOptions { env: [("TERM".to_owned(), term)].into(), ..ExecuteOptions::default() },
        paced: true,
        terminal: Some(size().unwrap_or_default()),
        ..StartOptions::default()
    };
    let process = sandbox.start(command, options).await;
    let process = process.map_err(Failure::of_start)?;
    match interact(&process, 0, Detaching::Forbidden, interrupts, output).await {
        Ok(Ended::Exit(exit)) => Ok(Finished { ended: Ok(exit), sink: Sink::streams(), timeout: None }),
        Ok(Ended::Detached) => Err(Failure::interrupted(SIGHUP)),
        Err(failure) => {
            let _ = process.signal(SIGHUP).await; // The sandbox may be deleted.
            Err(failure.after_start())
        }
    }
}
