//! `sandpod run`: runs a command in a new sandbox, deletes the sandbox, and exits with the code of the command.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use sandpod::{Command, Mode, Provider, Sandbox};

use super::Context;
use super::exec::{self, Finished, OnInterrupt};
use crate::exit::{Failure, Result};
use crate::interrupt::{Interrupts, create};
use crate::output::Output;
use crate::target::{Labels, Lifetime, Target};

/// The idle TTL of a sandbox without a configured TTL, in case we cannot delete it. A running command that we follow counts
/// as use.
const IDLE_TTL: Duration = Duration::from_secs(3600);
/// The TTL of a claim without a configured TTL: a stock runtime does not enforce the idle TTL, so the controller ends it.
const CLAIM_TTL: Duration = Duration::from_secs(24 * 3600);

const EXAMPLES: &str = "\
The exit code is the command's, or 125 if it was not started. Ctrl-C ends the command and deletes the sandbox. A local \
sandbox has no network unless block_network = false is configured. A sandbox of agent-sandbox mode without --ttl and \
--idle-ttl is deleted after a day at the latest.

Examples:
  sandpod run 'echo hello | tr a-z A-Z'
  sandpod run -- python3 -c 'print(1 + 1)'
  sandpod run --mode raw --namespace agents --image python:3.12-slim 'python3 --version'
  sandpod run 'wc -l' < file
  while read -r line; do sandpod run --no-stdin \"$line\"; done < lines";

#[derive(Args)]
#[command(
    override_usage = "sandpod run [OPTIONS] 'LINE'\n       sandpod run [OPTIONS] -- PROGRAM [ARGUMENT]...",
    after_help = EXAMPLES
)]
pub(crate) struct Arguments {
    /// Command line for the shell
    #[arg(required_unless_present = "argv", conflicts_with = "argv")]
    line: Option<String>,
    /// Program and arguments, without a shell
    #[arg(last = true)]
    argv: Vec<String>,
    #[command(flatten)]
    options: exec::CommandOptions,
    #[command(flatten)]
    labels: Labels,
}

/// Runs the command and returns its exit code.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<ExitCode> {
    let command = arguments.line.map_or(Command::Argv(arguments.argv), Command::Line);
    let target = context.target()?;
    let options = arguments.options.with_default_timeout(target.exec_timeout());
    let ran =
        in_new_sandbox(&target, &arguments.labels, &context.output, async |sandbox, interrupts, output| {
            exec::run_attached(sandbox, command, &options, OnInterrupt::End, output, interrupts).await
        });
    ran.await?.report(&context.output)
}

/// Creates a sandbox, runs `work` in it, and deletes the sandbox in any case.
pub(super) async fn in_new_sandbox(
    target: &Target,
    labels: &Labels,
    output: &Output,
    work: impl AsyncFnOnce(&Sandbox, &mut Interrupts, &Output) -> Result<Finished>,
) -> Result<Finished> {
    let mut interrupts = Interrupts::listen()?;
    let provider = target.creating_provider(Lifetime::Process).await.map_err(Failure::before_start)?;
    let mut request = target.request(labels);
    if !target.has_ttl() {
        request.idle_ttl = Some(IDLE_TTL);
        request.ttl = (target.mode == Mode::AgentSandbox).then_some(CLAIM_TTL);
    }
    let handle = create(&provider, request, &mut interrupts, output).await;
    let handle = handle.map_err(Failure::before_start)?;
    let ran = work(&handle.sandbox, &mut interrupts, output).await;
    delete(&provider, handle.id.as_str(), &mut interrupts, output).await;
    ran
}

/// Deletes the sandbox. A failure is only a note, because the exit code is the command's.
async fn delete(provider: &Provider, id: &str, interrupts: &mut Interrupts, output: &Output) {
    tokio::select! {
        deleted = provider.delete(id, true) => {
            if let Err(error) = deleted {
                output.note(&format!("sandbox {id} was not deleted: {error}"));
            }
        }
        _ = interrupts.next() => output.note(&format!("cleanup was interrupted: sandbox {id} may still exist; check with `sandpod list`")),
    }
}
