//! `sandpod shell`: opens a shell in a sandbox.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;
use sandpod::{Command, SandboxHandle};

use super::Context;
use super::exec::{CommandOptions, Finished, Keeping, Running};
use super::run::in_new_sandbox;
use crate::complete::sandboxes;
use crate::creation::Creation;
use crate::exit::{Failure, Result};
use crate::interrupt::Interrupts;
use crate::output::Output;
use crate::target::Labels;
use crate::terminal::is_interactive;

/// Runs bash, or sh where the image has no bash.
const SHELL: &str = "if command -v bash > /dev/null; then exec bash -i; else exec sh -i; fi";

const EXAMPLES: &str = "\
Without ID, the shell runs in a new sandbox, which is deleted when the shell exits. Ctrl-] detaches from the shell.

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
    #[arg(add = sandboxes())]
    id: Option<String>,
    #[command(flatten)]
    labels: Labels,
    #[command(flatten)]
    creation: Creation,
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
    arguments.id.as_ref().map_or(Ok(()), |_| arguments.creation.check_unused())?;
    let command = match arguments.argv {
        argv if argv.is_empty() => Command::from(SHELL),
        argv => Command::Argv(argv),
    };
    let (target, output) = (context.creating_target(arguments.creation)?, &context.output);
    let Some(id) = arguments.id else {
        let ran = in_new_sandbox(
            &target,
            target.request(&arguments.labels),
            output,
            async |handle, interrupts, output| {
                open(handle, command, Keeping::Temporary, interrupts, output).await
            },
        );
        return ran.await?.report(output);
    };
    let mut interrupts = Interrupts::listen()?;
    let finding = async { target.sandbox(&id).await.map_err(Failure::before_start) };
    let handle = interrupts.unless_interrupted(finding).await?;
    open(&handle, command, Keeping::Kept, &mut interrupts, output).await?.report(output)
}

async fn open(
    handle: &SandboxHandle,
    command: Command,
    keeping: Keeping,
    interrupts: &mut Interrupts,
    output: &Output,
) -> Result<Finished> {
    let options = CommandOptions::default();
    let running = Running { handle, options: &options, keeping, output };
    running.run_in_terminal(command, prompt(handle.id.as_str()), interrupts).await
}

/// The variables that make the prompt of bash and sh show the id and the directory.
fn prompt(id: &str) -> BTreeMap<String, String> {
    // An image's bashrc replaces PS1, so bash sets it again before its first prompt.
    let bash = format!(r"PS1='{id}:\w\$ '; unset PROMPT_COMMAND");
    [("PS1", format!("{id}:$PWD$ ")), ("PROMPT_COMMAND", bash)]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
}
